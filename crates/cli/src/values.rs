//! Keys and rows between the command line's text and a table's values.

use anyhow::{Context, Result, anyhow, bail, ensure};
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, TimeUnit};
use overside::table::arrow::to_arrow;
use overside::table::row::{Value, ValueRef};
use overside::table::schema::Schema;
use overside_files::calendar;
use overside_files::text::{text_column, write_decimal, write_hex};
use std::fmt::Write;
use std::ops::Bound;
use std::sync::Arc;

/// A key, or its first columns, from comma-separated text. A key of one column is the whole text.
///
/// # Errors
/// More values than the key has columns, or a value of another type.
pub fn parse_key(schema: &Schema, text: &str) -> Result<Vec<Value>> {
    parse_values(schema, schema.key(), "key", text)
}

/// As [`parse_key`], of some columns, which `what` calls by name.
///
/// # Errors
/// As [`parse_key`].
pub fn parse_values(schema: &Schema, columns: &[usize], what: &str, text: &str) -> Result<Vec<Value>> {
    let texts = if columns.len() == 1 { vec![text.to_string()] } else { split_values(text)? };
    let names = || columns.iter().map(|&c| schema.columns()[c].name.as_str()).collect::<Vec<_>>().join(",");
    ensure!(
        texts.len() <= columns.len(),
        "`{text}` has {} values, the {what} ({}) has {} columns",
        texts.len(),
        names(),
        columns.len()
    );
    let arrow = to_arrow(schema);
    texts
        .iter()
        .zip(columns)
        .map(|(text, &column)| {
            let field = arrow.field(column);
            let array = one_value(field.data_type(), Some(text));
            Ok(value_of(array.with_context(|| format!("{what} column `{}`", field.name()))?.as_ref()))
        })
        .collect()
}

/// The first and the last key of a range, or their first columns.
pub type Range = (Bound<Vec<Value>>, Bound<Vec<Value>>);

/// The range of keys that begin as `text` says.
///
/// The last value, where it is text or bytes and ends with `*`, stands for all that begin with what
/// is before it.
///
/// # Errors
/// As [`parse_key`].
pub fn parse_key_prefix(schema: &Schema, text: &str) -> Result<Range> {
    let columns = schema.key();
    let last = if columns.len() == 1 { 0 } else { split_values(text)?.len() - 1 };
    let ty = columns.get(last).map(|&column| to_arrow(schema).field(column).data_type().clone());
    let begun = text.strip_suffix('*').filter(|_| matches!(ty, Some(DataType::Utf8 | DataType::Binary)));
    let Some(begun) = begun else {
        let key = parse_key(schema, text)?;
        return Ok((Bound::Included(key.clone()), Bound::Included(key)));
    };
    // Bytes are written as 0x and digits; with none they are the empty value, with which all begin.
    let begun = if ty == Some(DataType::Binary) && begun.is_empty() { "0x" } else { begun };
    let from = parse_key(schema, begun)?;
    let (mut to, value) = (from.clone(), from.last());
    to.pop();
    let behind = match value {
        Some(Value::Utf8(text)) => behind_text(text).map(Value::Utf8),
        Some(Value::Binary(bytes)) => behind_bytes(bytes).map(Value::Binary),
        _ => None,
    };
    let to = match behind {
        Some(behind) => Bound::Excluded(to.into_iter().chain([behind]).collect()),
        None if to.is_empty() => Bound::Unbounded,
        None => Bound::Included(to),
    };
    Ok((Bound::Included(from), to))
}

/// The least text above all that begin with this one.
fn behind_text(text: &str) -> Option<String> {
    let mut text = text.to_owned();
    while let Some(last) = text.pop() {
        // Surrogates are no characters: ranges pass over them.
        if let Some(next) = (last..=char::MAX).nth(1) {
            text.push(next);
            return Some(text);
        }
    }
    None
}

/// The least bytes above all that begin with these.
fn behind_bytes(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = bytes.to_vec();
    while let Some(last) = bytes.pop() {
        if let Some(next) = last.checked_add(1) {
            bytes.push(next);
            return Some(bytes);
        }
    }
    None
}

/// As [`parse_key`], with a value for every column of the key.
///
/// # Errors
/// As [`parse_key`], or too few values.
pub fn parse_whole_key(schema: &Schema, text: &str) -> Result<Vec<Value>> {
    let key = parse_key(schema, text)?;
    let columns = schema.key().len();
    ensure!(key.len() == columns, "`{text}` has {} values, the key has {columns} columns", key.len());
    Ok(key)
}

/// A row from its key and the text of the other columns: comma-separated, or a JSON object.
///
/// # Errors
/// A column too many or too few, none of the others, a null where none may be, a value of another
/// type.
pub fn parse_row(schema: &Schema, key: &str, others: Option<&str>) -> Result<RecordBatch> {
    let arrow = Arc::new(to_arrow(schema));
    let mut texts: Vec<Option<String>> = vec![None; arrow.fields().len()];
    let keys = if schema.key().len() == 1 { vec![key.to_string()] } else { split_values(key)? };
    ensure!(keys.len() == schema.key().len(), "`{key}` has {} values, the key has {}", keys.len(), schema.key().len());
    for (&column, text) in schema.key().iter().zip(keys.iter().cloned()) {
        texts[column] = Some(text);
    }
    match others {
        None => ensure!(texts.len() == keys.len(), "give the other columns, {}, too: {OTHERS}", other_names(schema)),
        Some(json) if json.trim_start().starts_with('{') => fill_from_json(schema, json, &mut texts)?,
        Some(list) => fill_from_list(schema, list, &mut texts)?,
    }
    let mut arrays = Vec::with_capacity(texts.len());
    for (field, text) in arrow.fields().iter().zip(&texts) {
        ensure!(text.is_some() || field.is_nullable(), "column `{}` may not be null: give it a value", field.name());
        let array = one_value(field.data_type(), text.as_deref());
        arrays.push(array.with_context(|| format!("column `{}`", field.name()))?);
    }
    Ok(RecordBatch::try_new(arrow, arrays)?)
}

/// Appends a value as the command line writes it; `ty` is its column's type. A null appends
/// nothing.
pub fn write_value_ref(value: &ValueRef<'_>, ty: &DataType, out: &mut String) {
    let _ = match (value, ty) {
        (ValueRef::Null, _) => Ok(()),
        (ValueRef::Float32(v), _) => write!(out, "{v:?}"),
        (ValueRef::Float64(v), _) => write!(out, "{v:?}"),
        (ValueRef::Decimal128(v), DataType::Decimal128(_, scale)) => {
            write_decimal(*v, *scale, out);
            Ok(())
        }
        (ValueRef::Date32(v), _) => {
            calendar::write_date((*v).into(), out);
            Ok(())
        }
        (ValueRef::Timestamp(v), DataType::Timestamp(unit, zone)) => {
            calendar::write_timestamp(*v, unit, zone.is_some(), out);
            Ok(())
        }
        (ValueRef::FixedBinary(v) | ValueRef::Binary(v), _) => write_hex(v, out),
        (value, _) => write!(out, "{value}"),
    };
}

/// The values of a list: separated by commas, which a value in double quotes may hold.
fn split_values(text: &str) -> Result<Vec<String>> {
    let mut values = vec![String::new()];
    let (mut quoted, mut chars) = (false, text.chars().peekable());
    while let Some(char) = chars.next() {
        let value = values.last_mut().context("a list has a value")?;
        match char {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                value.push('"');
            }
            '"' if quoted || value.is_empty() => quoted = !quoted,
            ',' if !quoted => values.push(String::new()),
            char => value.push(char),
        }
    }
    ensure!(!quoted, "`{text}`: a quote is not closed");
    Ok(values)
}

fn fill_from_list(schema: &Schema, list: &str, texts: &mut [Option<String>]) -> Result<()> {
    let others: Vec<usize> = (0..texts.len()).filter(|column| !schema.key().contains(column)).collect();
    let values = if others.len() == 1 { vec![list.to_string()] } else { split_values(list)? };
    ensure!(
        values.len() == others.len(),
        "{} values for the {} columns {}; a null is an empty field",
        values.len(),
        others.len(),
        other_names(schema)
    );
    for (column, value) in others.into_iter().zip(values) {
        texts[column] = Some(value).filter(|value| !value.is_empty());
    }
    Ok(())
}

/// The columns that are not of the key.
fn other_names(schema: &Schema) -> String {
    let others = schema.columns().iter().enumerate().filter(|(column, _)| !schema.key().contains(column));
    others.map(|(_, column)| column.name.as_str()).collect::<Vec<_>>().join(",")
}

fn fill_from_json(schema: &Schema, json: &str, texts: &mut [Option<String>]) -> Result<()> {
    use serde_json::Value as Json;
    let object: serde_json::Map<String, Json> =
        serde_json::from_str(json).context("the value is no JSON object, as {\"name\": 1.5}")?;
    for (name, value) in object {
        let column = schema.column(&name)?;
        ensure!(!schema.key().contains(&column), "`{name}` is part of the key: give it there");
        texts[column] = match value {
            Json::Null => None,
            Json::String(text) => Some(text),
            Json::Number(number) => Some(number.to_string()),
            Json::Bool(flag) => Some(flag.to_string()),
            Json::Array(_) | Json::Object(_) => bail!("`{name}` is nested, which columns are not"),
        };
    }
    Ok(())
}

fn one_value(ty: &DataType, text: Option<&str>) -> Result<ArrayRef> {
    let mut column = text_column(ty)?;
    match text {
        None => column.push_null(),
        Some(text) => column.push(text).map_err(|why| anyhow!(why))?,
    }
    Ok(column.finish())
}

/// The value of an array of one.
fn value_of(array: &dyn Array) -> Value {
    match array.data_type() {
        DataType::Int8 => Value::Int8(array.as_primitive::<Int8Type>().value(0)),
        DataType::Int16 => Value::Int16(array.as_primitive::<Int16Type>().value(0)),
        DataType::Int32 => Value::Int32(array.as_primitive::<Int32Type>().value(0)),
        DataType::Int64 => Value::Int64(array.as_primitive::<Int64Type>().value(0)),
        DataType::UInt8 => Value::UInt8(array.as_primitive::<UInt8Type>().value(0)),
        DataType::UInt16 => Value::UInt16(array.as_primitive::<UInt16Type>().value(0)),
        DataType::UInt32 => Value::UInt32(array.as_primitive::<UInt32Type>().value(0)),
        DataType::UInt64 => Value::UInt64(array.as_primitive::<UInt64Type>().value(0)),
        DataType::Float32 => Value::Float32(array.as_primitive::<Float32Type>().value(0)),
        DataType::Float64 => Value::Float64(array.as_primitive::<Float64Type>().value(0)),
        DataType::Decimal128(..) => Value::Decimal128(array.as_primitive::<Decimal128Type>().value(0)),
        DataType::Date32 => Value::Date32(array.as_primitive::<Date32Type>().value(0)),
        DataType::Timestamp(unit, _) => Value::Timestamp(ticks(array, unit)),
        DataType::Boolean => Value::Boolean(array.as_boolean().value(0)),
        DataType::FixedSizeBinary(_) => Value::FixedBinary(array.as_fixed_size_binary().value(0).to_vec()),
        DataType::Binary => Value::Binary(array.as_binary::<i32>().value(0).to_vec()),
        _ => Value::Utf8(array.as_string::<i32>().value(0).to_string()),
    }
}

fn ticks(array: &dyn Array, unit: &TimeUnit) -> i64 {
    overside_files::text::ticks(array, unit, 0)
}

const OTHERS: &str = "comma-separated, or as a JSON object by name";

#[cfg(test)]
mod tests {
    use super::*;
    use overside::table::schema::{Column, ColumnType};

    fn schema(key: &[&str]) -> Schema {
        let price = ColumnType::Decimal128 { precision: 9, scale: 2 };
        let columns = vec![
            Column::new("id", ColumnType::Int64),
            Column::new("place", ColumnType::Utf8),
            Column::nullable("price", price),
            Column::nullable("day", ColumnType::Date32),
        ];
        Schema::with_key(columns, key).unwrap()
    }

    #[test]
    fn keys_are_parsed_by_their_columns_types() {
        let one = schema(&["place"]);
        assert_eq!(parse_key(&one, "a,b").unwrap(), [Value::Utf8("a,b".into())]);
        let two = schema(&["id", "place"]);
        let both = [Value::Int64(-7), Value::Utf8("a,\"b".into())];
        assert_eq!(parse_key(&two, "-7,\"a,\"\"b\"").unwrap(), both);
        assert_eq!(parse_key(&two, "-7").unwrap(), both[..1]);
        let told = |text| format!("{:#}", parse_whole_key(&two, text).unwrap_err());
        assert!(told("x,a").contains("key column `id`: `x` is no int64"));
        assert!(told("1,a,b").contains("3 values"));
        assert!(told("1").contains("has 1 values, the key has 2 columns"));
        assert!(told("1,\"a").contains("quote"));
    }

    #[test]
    fn a_prefix_is_a_range() {
        let two = schema(&["id", "place"]);
        let (id, text) = (Value::Int64, |text: &str| Value::Utf8(text.into()));
        let parsed = |text| parse_key_prefix(&two, text).unwrap();
        let alike = |key: Vec<Value>| (Bound::Included(key.clone()), Bound::Included(key));
        assert_eq!(parsed("7"), alike(vec![id(7)]));
        assert_eq!(parsed("7,Main"), alike(vec![id(7), text("Main")]));
        let range = (Bound::Included(vec![id(7), text("Main")]), Bound::Excluded(vec![id(7), text("Maio")]));
        assert_eq!(parsed("7,Main*"), range);
        let (from, to) = parsed(&format!("7,{}*", char::MAX));
        assert_eq!(from, Bound::Included(vec![id(7), text("\u{10ffff}")]));
        assert_eq!(to, Bound::Included(vec![id(7)]), "nothing is behind it but the next number");
        assert!(parse_key_prefix(&two, "7*").is_err(), "a number has no beginning");
        assert!(parse_key_prefix(&two, "7,a,b").is_err());
        let one = schema(&["place"]);
        let range = (Bound::Included(vec![text("a\u{10ffff}")]), Bound::Excluded(vec![text("b")]));
        assert_eq!(parse_key_prefix(&one, "a\u{10ffff}*").unwrap(), range);
        assert_eq!(parse_key_prefix(&one, "*").unwrap(), (Bound::Included(vec![text("")]), Bound::Unbounded));
        assert_eq!(behind_text("\u{d7ff}").unwrap(), "\u{e000}");
        assert_eq!(behind_bytes(&[1, 255, 255]), Some(vec![2]));
        assert_eq!(behind_bytes(&[255]), None);
    }

    #[test]
    fn a_row_is_a_key_and_a_list_or_an_object() {
        let schema = schema(&["id"]);
        let list = parse_row(&schema, "1", Some("\"x, y\",2.5,")).unwrap();
        let object = parse_row(&schema, "1", Some(r#"{"place": "x, y", "price": 2.5}"#)).unwrap();
        assert_eq!(list, object);
        assert_eq!(list.column(2).as_primitive::<Decimal128Type>().value(0), 250);
        assert!(list.column(3).is_null(0));
        let told = |value| format!("{:#}", parse_row(&schema, "1", value).unwrap_err());
        assert!(told(None).contains("give the other columns, place,price,day, too"));
        assert!(told(Some("x")).contains("1 values for the 3 columns place,price,day"));
        assert!(told(Some("x,abc,")).contains("column `price`: `abc` is no decimal"));
        assert!(told(Some(r#"{"nowhere": 1}"#)).contains("nowhere"));
        assert!(told(Some(r#"{"id": 1, "place": "x"}"#)).contains("part of the key"));
        assert!(told(Some(r#"{"place": ["x"]}"#)).contains("nested"));
        assert!(told(Some("{place")).contains("no JSON object"));
    }
}
