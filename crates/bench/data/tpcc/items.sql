-- Clause 4.3.3: what all warehouses share.
INSERT INTO item
SELECT i, 1 + floor(random() * 10000)::int, letters(14, 24), 1 + (random() * 99)::numeric(5, 2), letters(26, 50)
FROM generate_series(1, 100000) AS i;
