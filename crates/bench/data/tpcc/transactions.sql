-- TPC-C's five transactions (TPC-C 5.11, clause 2), a function each, so that a client's call is one.
CREATE FUNCTION new_order(w int, d int, warehouses int) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    c int := nurand(1023, 1, 3000);
    lines int := 5 + floor(random() * 11)::int;
    -- One in a hundred names an item that there is none of, and is undone.
    fails boolean := random() < 0.01;
    o int; item_id int; supply int; quantity int; price numeric; info text; all_local int := 1;
    items int[]; supplies int[];
BEGIN
    FOR number IN 1..lines LOOP
        items[number] := CASE WHEN fails AND number = lines THEN 100001 ELSE nurand(8191, 1, 100000) END;
        supplies[number] := w;
        IF warehouses > 1 AND random() < 0.01 THEN
            supplies[number] := 1 + (w + floor(random() * (warehouses - 1))::int) % warehouses;
            all_local := 0;
        END IF;
    END LOOP;
    -- In one order, so that two of these never wait for each other.
    SELECT array_agg(item ORDER BY place, item), array_agg(place ORDER BY place, item) INTO items, supplies
    FROM unnest(items, supplies) AS line (item, place);
    PERFORM w_tax FROM warehouse WHERE w_id = w;
    PERFORM c_discount, c_last, c_credit FROM customer WHERE c_w_id = w AND c_d_id = d AND c_id = c;
    UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = w AND d_id = d RETURNING d_next_o_id - 1 INTO o;
    INSERT INTO orders VALUES (w, d, o, c, now(), NULL, lines, all_local);
    INSERT INTO new_order VALUES (w, d, o);
    FOR number IN 1..lines LOOP
        item_id := items[number];
        supply := supplies[number];
        quantity := 1 + floor(random() * 10)::int;
        SELECT i_price INTO price FROM item WHERE i_id = item_id;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'no such item' USING ERRCODE = 'no_data_found';
        END IF;
        UPDATE stock
        SET s_quantity = CASE WHEN s_quantity >= quantity + 10 THEN s_quantity - quantity ELSE s_quantity - quantity + 91 END,
            s_ytd = s_ytd + quantity, s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + CASE WHEN supply = w THEN 0 ELSE 1 END
        WHERE s_w_id = supply AND s_i_id = item_id
        RETURNING substr(s_dist, (d - 1) * 24 + 1, 24) INTO info;
        INSERT INTO order_line VALUES (w, d, o, number, item_id, supply, NULL, quantity, quantity * price, info);
    END LOOP;
    RETURN true;
EXCEPTION WHEN no_data_found THEN
    RETURN false;
END $$;

CREATE FUNCTION payment(w int, d int, warehouses int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    amount numeric := (1 + random() * 4999)::numeric(6, 2);
    c_w int := w; c_d int := d; c int;
BEGIN
    IF warehouses > 1 AND random() < 0.15 THEN
        c_w := 1 + (w + floor(random() * (warehouses - 1))::int) % warehouses;
        c_d := 1 + floor(random() * 10)::int;
    END IF;
    c := customer_of(c_w, c_d);
    UPDATE warehouse SET w_ytd = w_ytd + amount WHERE w_id = w;
    UPDATE district SET d_ytd = d_ytd + amount WHERE d_w_id = w AND d_id = d;
    UPDATE customer
    SET c_balance = c_balance - amount, c_ytd_payment = c_ytd_payment + amount, c_payment_cnt = c_payment_cnt + 1,
        c_data = CASE WHEN c_credit = 'BC' THEN left(format('%s %s %s %s %s %s', c, c_d, c_w, d, w, amount) || c_data, 500) ELSE c_data END
    WHERE c_w_id = c_w AND c_d_id = c_d AND c_id = c;
    INSERT INTO history VALUES (c, c_d, c_w, d, w, now(), amount, 'a payment at this place');
END $$;

-- Three of five are known by their last name: the middle one of those who have it.
CREATE FUNCTION customer_of(w int, d int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    named int[];
    name text := last_name(nurand(255, 0, 999));
BEGIN
    IF random() < 0.6 THEN
        SELECT array_agg(c_id ORDER BY c_first) INTO named FROM customer WHERE c_w_id = w AND c_d_id = d AND c_last = name;
        IF named IS NOT NULL THEN
            RETURN named[(cardinality(named) + 1) / 2];
        END IF;
    END IF;
    RETURN nurand(1023, 1, 3000);
END $$;

CREATE FUNCTION order_status(w int, d int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    c int := customer_of(w, d);
    o int; lines int;
BEGIN
    PERFORM c_balance, c_first, c_middle, c_last FROM customer WHERE c_w_id = w AND c_d_id = d AND c_id = c;
    SELECT o_id INTO o FROM orders WHERE o_w_id = w AND o_d_id = d AND o_c_id = c ORDER BY o_id DESC LIMIT 1;
    SELECT count(ol_amount) INTO lines FROM order_line WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = o;
    RETURN lines;
END $$;

CREATE FUNCTION delivery(w int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    carrier int := 1 + floor(random() * 10)::int;
    o int; c int; total numeric; delivered int := 0;
BEGIN
    FOR d IN 1..10 LOOP
        DELETE FROM new_order WHERE no_w_id = w AND no_d_id = d
            AND no_o_id = (SELECT no_o_id FROM new_order WHERE no_w_id = w AND no_d_id = d ORDER BY no_o_id LIMIT 1 FOR UPDATE)
            RETURNING no_o_id INTO o;
        CONTINUE WHEN o IS NULL;
        UPDATE orders SET o_carrier_id = carrier WHERE o_w_id = w AND o_d_id = d AND o_id = o RETURNING o_c_id INTO c;
        UPDATE order_line SET ol_delivery_d = now() WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = o;
        SELECT sum(ol_amount) INTO total FROM order_line WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = o;
        UPDATE customer SET c_balance = c_balance + total, c_delivery_cnt = c_delivery_cnt + 1
        WHERE c_w_id = w AND c_d_id = d AND c_id = c;
        delivered := delivered + 1;
    END LOOP;
    RETURN delivered;
END $$;

CREATE FUNCTION stock_level(w int, d int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    next int; low int;
    threshold int := 10 + floor(random() * 11)::int;
BEGIN
    SELECT d_next_o_id INTO next FROM district WHERE d_w_id = w AND d_id = d;
    SELECT count(DISTINCT s_i_id) INTO low
    FROM order_line JOIN stock ON s_w_id = w AND s_i_id = ol_i_id AND s_quantity < threshold
    WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id BETWEEN next - 20 AND next - 1;
    RETURN low;
END $$;
