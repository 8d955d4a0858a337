-- Clause 4.3.3: one warehouse, number `:w`.
INSERT INTO warehouse
SELECT w, letters(6, 10), letters(20, 40), letters(10, 20), letters(2, 2), letters(9, 9), (random() * 0.2)::numeric(4, 4), 300000
FROM (SELECT :w::int AS w) AS this;
INSERT INTO district
SELECT w, d, letters(6, 10), letters(20, 40), letters(10, 20), letters(2, 2), letters(9, 9), (random() * 0.2)::numeric(4, 4), 30000, 3001
FROM (SELECT :w::int AS w) AS this, generate_series(1, 10) AS d;
INSERT INTO stock
SELECT w, i, 10 + floor(random() * 91)::int, letters(240, 240), 0, 0, 0, letters(26, 50)
FROM (SELECT :w::int AS w) AS this, generate_series(1, 100000) AS i;
INSERT INTO customer
SELECT w, d, c, letters(8, 16), 'OE', last_name(CASE WHEN c <= 1000 THEN c - 1 ELSE nurand(255, 0, 999) END), letters(20, 40),
    letters(10, 20), letters(2, 2), letters(9, 9), letters(16, 16), now(), CASE WHEN random() < 0.1 THEN 'BC' ELSE 'GC' END, 50000,
    (random() * 0.5)::numeric(4, 4), -10, 10, 1, 0, letters(300, 500)
FROM (SELECT :w::int AS w) AS this, generate_series(1, 10) AS d, generate_series(1, 3000) AS c;
INSERT INTO history
SELECT c_id, c_d_id, c_w_id, c_d_id, c_w_id, now(), 10, letters(12, 24) FROM customer WHERE c_w_id = :w;
-- Each customer has one order, in no order.
INSERT INTO orders
SELECT w, d, row_number() OVER (PARTITION BY w, d ORDER BY random()), c, now(), NULL, 5 + floor(random() * 11)::int, 1
FROM (SELECT :w::int AS w) AS this, generate_series(1, 10) AS d, generate_series(1, 3000) AS c;
UPDATE orders SET o_carrier_id = 1 + floor(random() * 10)::int WHERE o_w_id = :w AND o_id < 2101;
INSERT INTO new_order SELECT o_w_id, o_d_id, o_id FROM orders WHERE o_w_id = :w AND o_id >= 2101;
INSERT INTO order_line
SELECT o_w_id, o_d_id, o_id, number, 1 + floor(random() * 100000)::int, o_w_id, CASE WHEN o_id < 2101 THEN o_entry_d END, 5,
    CASE WHEN o_id < 2101 THEN 0 ELSE (0.01 + random() * 9999.98)::numeric(6, 2) END, letters(24, 24)
FROM orders, generate_series(1, o_ol_cnt) AS number
WHERE o_w_id = :w
ORDER BY o_w_id, o_d_id, o_id, number;

