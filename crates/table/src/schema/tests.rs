use std::sync::Arc;

use proptest::prelude::*;

use super::*;

/// Any column type with parameters in range.
pub(crate) fn any_type() -> impl Strategy<Value = ColumnType> {
    let unit = prop_oneof![
        Just(TimeUnit::Second),
        Just(TimeUnit::Millisecond),
        Just(TimeUnit::Microsecond),
        Just(TimeUnit::Nanosecond)
    ];
    prop_oneof![
        Just(ColumnType::Int8),
        Just(ColumnType::Int16),
        Just(ColumnType::Int32),
        Just(ColumnType::Int64),
        Just(ColumnType::UInt8),
        Just(ColumnType::UInt16),
        Just(ColumnType::UInt32),
        Just(ColumnType::UInt64),
        Just(ColumnType::Float32),
        Just(ColumnType::Float64),
        (1u8..=38, -38i8..=38)
            .prop_map(|(precision, scale)| ColumnType::Decimal128 { precision, scale: scale.min(precision as i8) }),
        Just(ColumnType::Date32),
        (unit, proptest::option::of("[A-Za-z/+:0-9]{1,20}"))
            .prop_map(|(unit, zone)| ColumnType::Timestamp { unit, zone: zone.map(Arc::from) }),
        Just(ColumnType::Boolean),
        (1u16..=40).prop_map(ColumnType::FixedBinary),
        Just(ColumnType::Utf8),
        Just(ColumnType::Binary),
    ]
}

/// Any schema of up to 12 columns with a key of up to 3.
pub(crate) fn any_schema() -> impl Strategy<Value = Schema> {
    (proptest::collection::vec((any_type(), any::<bool>()), 1..12), 1usize..=3, any::<u64>()).prop_map(
        |(types, keys, seed)| {
            let count = types.len();
            let mut key: Vec<usize> = (0..keys).map(|k| (seed as usize / 7usize.pow(k as u32)) % count).collect();
            let mut seen = std::collections::HashSet::new();
            key.retain(|k| seen.insert(*k));
            let column = |(index, (column_type, nullable)): (usize, (ColumnType, bool))| Column {
                name: format!("column{index}"),
                column_type,
                nullable: nullable && !key.contains(&index),
            };
            let columns = types.into_iter().enumerate().map(column).collect();
            Schema::new(columns, key).expect("generated within the limits")
        },
    )
}

proptest! {
    #[test]
    fn decodes_what_it_encodes(schema in any_schema()) {
        let mut bytes = Vec::new();
        schema.encode(&mut bytes);
        prop_assert!(bytes.len() <= SCHEMA_BYTES_MAX);
        prop_assert_eq!(Schema::decode(&bytes).unwrap(), schema);
    }

    #[test]
    fn garbage_is_an_error_or_a_schema_within_limits(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(schema) = Schema::decode(&bytes) {
            let mut again = Vec::new();
            schema.encode(&mut again);
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn a_flipped_byte_never_panics(schema in any_schema(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut bytes = Vec::new();
        schema.encode(&mut bytes);
        let at = at.index(bytes.len());
        bytes[at] = to;
        let _ = Schema::decode(&bytes);
        bytes.truncate(at);
        prop_assert!(Schema::decode(&bytes).is_err());
    }
}

#[test]
fn limits_hold() {
    let int = |name: &str| Column::new(name, ColumnType::Int32);
    assert_eq!(Schema::new(vec![], vec![0]), Err(SchemaError::ColumnCount { count: 0 }));
    let many = (0..=COLUMNS_MAX).map(|i| int(&i.to_string())).collect();
    assert!(matches!(Schema::new(many, vec![0]), Err(SchemaError::ColumnCount { .. })));
    let twice = vec![int("a"), int("a")];
    assert!(matches!(Schema::new(twice, vec![0]), Err(SchemaError::DuplicateName { .. })));
    assert!(matches!(Schema::new(vec![int("")], vec![0]), Err(SchemaError::Name { index: 0 })));
    assert!(matches!(Schema::new(vec![int(&"n".repeat(256))], vec![0]), Err(SchemaError::Name { index: 0 })));
    assert!(matches!(Schema::new(vec![int("a")], vec![]), Err(SchemaError::KeyColumnCount { count: 0 })));
    assert!(matches!(Schema::new(vec![int("a")], vec![1]), Err(SchemaError::KeyOutOfRange { index: 1 })));
    assert!(matches!(Schema::new(vec![int("a")], vec![0, 0]), Err(SchemaError::KeyTwice { .. })));
    let null = vec![Column::nullable("a", ColumnType::Int32)];
    assert!(matches!(Schema::new(null, vec![0]), Err(SchemaError::KeyNullable { .. })));
    let wide = vec![int("a"), Column::new("b", ColumnType::FixedBinary(4095))];
    assert!(matches!(Schema::new(wide, vec![0]), Err(SchemaError::PrefixTooLong { bytes: 4099 })));
    let decimal = Column::new("d", ColumnType::Decimal128 { precision: 39, scale: 0 });
    assert!(matches!(Schema::new(vec![decimal], vec![0]), Err(SchemaError::Type { .. })));
    assert!(matches!(Schema::with_key(vec![int("a")], &["b"]), Err(SchemaError::UnknownColumn { .. })));
}
