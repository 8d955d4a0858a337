//! Rows as a table's rows: the schema that a database administrator would
//! choose, and both ways between.

use super::{COLUMNS, KEY, Row};
use overside::table::{
    row::{Malformed, RowView, ValueRef},
    schema::{Column, ColumnType, Schema, SchemaError},
};

/// The table's schema.
///
/// # Errors
///
/// The table store takes no such schema.
pub fn schema() -> Result<Schema, SchemaError> {
    let decimal = ColumnType::Decimal128 { precision: 15, scale: 2 };
    let columns = COLUMNS.iter().map(|name| {
        let column_type = match *name {
            "l_linenumber" => ColumnType::Int32,
            "l_quantity" | "l_extendedprice" | "l_discount" | "l_tax" => decimal.clone(),
            "l_shipdate" | "l_commitdate" | "l_receiptdate" => ColumnType::Date32,
            "l_returnflag" | "l_linestatus" | "l_shipinstruct" | "l_shipmode" | "l_comment" => ColumnType::Utf8,
            _ => ColumnType::Int64,
        };
        Column::new(*name, column_type)
    });
    Schema::with_key(columns.collect(), &KEY)
}

impl Row<'_> {
    /// The row's values, one a column.
    pub fn values(&self) -> [ValueRef<'_>; 18] {
        let decimal = |hundredths: i64| ValueRef::Decimal128(i128::from(hundredths));
        [
            ValueRef::Int64(self.orderkey),
            ValueRef::Int64(self.partkey),
            ValueRef::Int64(self.suppkey),
            ValueRef::Int32(self.linenumber),
            decimal(self.quantity),
            decimal(self.extendedprice),
            decimal(self.discount),
            decimal(self.tax),
            ValueRef::Utf8(self.returnflag),
            ValueRef::Utf8(self.linestatus),
            ValueRef::Date32(self.shipdate),
            ValueRef::Date32(self.commitdate),
            ValueRef::Date32(self.receiptdate),
            ValueRef::Utf8(self.shipinstruct),
            ValueRef::Utf8(self.shipmode),
            ValueRef::Utf8(self.comment),
            ValueRef::Int64(self.version),
            ValueRef::Int64(self.checksum),
        ]
    }
}

impl<'a> Row<'a> {
    /// Reads a row that a scan of all columns returned.
    ///
    /// # Errors
    ///
    /// A string of the row is broken.
    pub fn of_view(view: &RowView<'a>) -> Result<Row<'a>, Malformed> {
        let long = |column| view.i64(column).unwrap_or_default();
        let int = |column| view.i32(column).unwrap_or_default();
        let date = |column| view.i32(column).unwrap_or_default();
        // A price beyond 64 bits cannot be the one written: any value that differs will do.
        let decimal = |column| view.i128(column).and_then(|v| i64::try_from(v).ok()).unwrap_or(i64::MIN);
        let text = |column| Ok::<_, Malformed>(view.str(column)?.unwrap_or_default());
        Ok(Row {
            orderkey: long(0),
            partkey: long(1),
            suppkey: long(2),
            linenumber: int(3),
            quantity: decimal(4),
            extendedprice: decimal(5),
            discount: decimal(6),
            tax: decimal(7),
            returnflag: text(8)?,
            linestatus: text(9)?,
            shipdate: date(10),
            commitdate: date(11),
            receiptdate: date(12),
            shipinstruct: text(13)?,
            shipmode: text(14)?,
            comment: text(15)?,
            version: long(16),
            checksum: long(17),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lineitem::{Lineitem, Rows};
    use overside::table::row::{RowBuilder, RowLayout};
    use std::sync::Arc;

    #[test]
    fn rows_come_back_from_the_tables_form() {
        let table = Lineitem::sample(0.0005);
        let layout = Arc::new(RowLayout::new(&schema().unwrap()));
        let mut builder = RowBuilder::new(Arc::clone(&layout));
        for index in 0..table.rows().len() {
            let row = table.rows().at_version(index, 1 + index as i64 % 3);
            let value = builder.encode(&row.values()).unwrap().to_vec();
            let view = RowView::of_value(&value, &layout).unwrap();
            assert_eq!(Row::of_view(&view).unwrap(), row);
        }
    }

    #[test]
    fn the_key_is_the_standards() {
        let schema = schema().unwrap();
        assert_eq!(schema.columns().len(), 18);
        assert_eq!(schema.key(), [0, 3]);
    }
}
