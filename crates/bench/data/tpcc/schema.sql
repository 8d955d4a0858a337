-- TPC-C's nine tables (TPC-C 5.11, clause 1.3), with rows of its lengths.
CREATE TABLE warehouse (
    w_id int NOT NULL, w_name text, w_street text, w_city text, w_state text, w_zip text, w_tax numeric(4, 4), w_ytd numeric(12, 2)
) WITH (fillfactor = 50);
CREATE TABLE district (
    d_w_id int NOT NULL, d_id int NOT NULL, d_name text, d_street text, d_city text, d_state text, d_zip text, d_tax numeric(4, 4),
    d_ytd numeric(12, 2), d_next_o_id int
) WITH (fillfactor = 50);
CREATE TABLE customer (
    c_w_id int NOT NULL, c_d_id int NOT NULL, c_id int NOT NULL, c_first text, c_middle text, c_last text, c_street text, c_city text,
    c_state text, c_zip text, c_phone text, c_since timestamptz, c_credit text, c_credit_lim numeric(12, 2), c_discount numeric(4, 4),
    c_balance numeric(12, 2), c_ytd_payment numeric(12, 2), c_payment_cnt int, c_delivery_cnt int, c_data text
);
CREATE TABLE history (
    h_c_id int, h_c_d_id int, h_c_w_id int, h_d_id int, h_w_id int, h_date timestamptz, h_amount numeric(6, 2), h_data text
);
CREATE TABLE orders (
    o_w_id int NOT NULL, o_d_id int NOT NULL, o_id int NOT NULL, o_c_id int, o_entry_d timestamptz, o_carrier_id int, o_ol_cnt int,
    o_all_local int
);
CREATE TABLE new_order (no_w_id int NOT NULL, no_d_id int NOT NULL, no_o_id int NOT NULL);
CREATE TABLE order_line (
    ol_w_id int NOT NULL, ol_d_id int NOT NULL, ol_o_id int NOT NULL, ol_number int NOT NULL, ol_i_id int, ol_supply_w_id int,
    ol_delivery_d timestamptz, ol_quantity int, ol_amount numeric(6, 2), ol_dist_info text
);
CREATE TABLE item (i_id int NOT NULL, i_im_id int, i_name text, i_price numeric(5, 2), i_data text);
CREATE TABLE stock (
    s_w_id int NOT NULL, s_i_id int NOT NULL, s_quantity int, s_dist text, s_ytd int, s_order_cnt int, s_remote_cnt int, s_data text
);

-- A letter string of a length between two, which no compression shortens much.
CREATE FUNCTION letters(shortest int, longest int) RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT left(string_agg(md5(random()::text || piece), ''), shortest + floor(random() * (longest - shortest + 1))::int)
    FROM generate_series(1, (longest + 31) / 32) AS piece
$$;
-- Clause 2.1.6. The constants are those of this load.
CREATE FUNCTION nurand(a int, low int, high int) RETURNS int LANGUAGE sql VOLATILE AS $$
    SELECT (((floor(random() * (a + 1))::int | (low + floor(random() * (high - low + 1))::int)) + 123) % (high - low + 1)) + low
$$;
-- Clause 4.3.2.3.
CREATE FUNCTION last_name(number int) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT s[number / 100 + 1] || s[number / 10 % 10 + 1] || s[number % 10 + 1]
    FROM (SELECT ARRAY['BAR', 'OUGHT', 'ABLE', 'PRI', 'PRES', 'ESE', 'ANTI', 'CALLY', 'ATION', 'EING'] AS s) AS syllables
$$;
