//! A table as its client knows it.

use std::sync::Arc;

use super::ClientError;
use super::batch::RowBatch;
use crate::key::KeyCodec;
use crate::projection::Projection;
use crate::row::{RowLayout, RowView, ValueRef};
use crate::schema::Schema;
use crate::wire::TableInfo;

/// A table of a server: its schema, and how its rows and keys lie.
#[derive(Clone, Debug)]
pub struct RemoteTable {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    info: TableInfo,
    schema: Schema,
    layout: Arc<RowLayout>,
    keys: KeyCodec,
}

impl RemoteTable {
    pub(crate) fn new(info: TableInfo) -> Result<RemoteTable, ClientError> {
        let schema = Schema::decode(&info.schema)?;
        let layout = Arc::new(RowLayout::new(&schema));
        let keys = KeyCodec::new(&schema);
        Ok(RemoteTable { inner: Arc::new(Inner { info, schema, layout, keys }) })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.inner.info.name
    }

    /// What the server said of it when it was looked up.
    pub fn info(&self) -> &TableInfo {
        &self.inner.info
    }

    /// Its columns and key.
    pub fn schema(&self) -> &Schema {
        &self.inner.schema
    }

    /// Where columns lie in a whole row.
    pub fn layout(&self) -> &Arc<RowLayout> {
        &self.inner.layout
    }

    /// How its keys are encoded.
    pub fn keys(&self) -> &KeyCodec {
        &self.inner.keys
    }

    /// An empty batch of rows for it.
    pub fn batch(&self) -> RowBatch {
        RowBatch::new(self.inner.layout.clone())
    }

    pub(crate) fn id(&self) -> u32 {
        self.inner.info.id
    }

    /// Encodes a key's values.
    pub(crate) fn key(&self, values: &[ValueRef<'_>]) -> Result<Vec<u8>, ClientError> {
        let mut key = Vec::new();
        self.inner.keys.encode(values, &mut key)?;
        Ok(key)
    }

    /// Encodes the values of the key's first columns: where the keys that start with them begin.
    pub(crate) fn key_start(&self, values: &[ValueRef<'_>]) -> Result<Vec<u8>, ClientError> {
        let mut key = Vec::new();
        self.inner.keys.encode_first(values, &mut key)?;
        Ok(key)
    }

    pub(crate) fn projection(&self, columns: Option<&[usize]>) -> Result<Projection, ClientError> {
        Ok(match columns {
            None => Projection::whole(&self.inner.schema),
            Some(columns) => Projection::new(&self.inner.schema, columns)?,
        })
    }
}

/// A whole row of its own.
#[derive(Clone, Debug)]
pub struct OwnedRow {
    value: Vec<u8>,
    layout: Arc<RowLayout>,
}

impl OwnedRow {
    pub(crate) fn new(value: Vec<u8>, table: &RemoteTable) -> Result<OwnedRow, ClientError> {
        let layout = table.layout().clone();
        RowView::of_value(&value, &layout)?.check()?;
        Ok(OwnedRow { value, layout })
    }

    /// To read its columns.
    pub fn view(&self) -> RowView<'_> {
        let (prefix, rest) = self.value.split_at(self.layout.prefix_len());
        RowView::trusted(prefix, rest, &self.layout)
    }
}
