-- Clause 3.3.2, conditions 1 to 4: how many warehouses and districts violate each.
SELECT
    (SELECT count(*) FROM warehouse JOIN (SELECT d_w_id, sum(d_ytd) AS ytd FROM district GROUP BY 1) AS d ON d_w_id = w_id
     WHERE w_ytd <> ytd),
    (SELECT count(*) FROM district
     LEFT JOIN (SELECT o_w_id, o_d_id, max(o_id) AS o FROM orders GROUP BY 1, 2) AS orders ON o_w_id = d_w_id AND o_d_id = d_id
     LEFT JOIN (SELECT no_w_id, no_d_id, max(no_o_id) AS n FROM new_order GROUP BY 1, 2) AS new ON no_w_id = d_w_id AND no_d_id = d_id
     WHERE d_next_o_id - 1 <> o OR n IS NOT NULL AND n <> o),
    (SELECT count(*) FROM (SELECT max(no_o_id) - min(no_o_id) + 1 - count(*) AS gap FROM new_order GROUP BY no_w_id, no_d_id) AS new
     WHERE gap <> 0),
    (SELECT count(*) FROM (SELECT o_w_id, o_d_id, sum(o_ol_cnt) AS lines FROM orders GROUP BY 1, 2) AS orders
     LEFT JOIN (SELECT ol_w_id, ol_d_id, count(*) AS there FROM order_line GROUP BY 1, 2) AS lines ON ol_w_id = o_w_id AND ol_d_id = o_d_id
     WHERE lines <> coalesce(there, 0));
