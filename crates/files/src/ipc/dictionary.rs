//! The values of dictionaries, as they came: what a delta adds is put behind what there is, which
//! stays where it lies.

use super::super::budget::Charge;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use std::collections::HashMap;
use std::sync::Arc;

/// The dictionaries read so far, by number.
pub type Dictionaries = HashMap<i64, Arc<Dictionary>>;

/// The values of a dictionary.
#[derive(Clone, Default)]
pub struct Dictionary {
    parts: Vec<Part>,
}

#[derive(Clone)]
struct Part {
    /// Number of the first value behind it.
    end: usize,
    values: ArrayRef,
    _charges: Arc<Vec<Charge>>,
}

impl Dictionary {
    /// Adds values, which are texts; `charges` are for them.
    pub fn add(&mut self, values: ArrayRef, charges: Vec<Charge>) {
        let end = self.len() + values.len();
        self.parts.push(Part { end, values, _charges: Arc::new(charges) });
    }

    /// Value `at`, which may be null; none where there is no such value.
    pub fn get(&self, at: usize) -> Option<Option<&str>> {
        let index = self.parts.partition_point(|part| part.end <= at);
        let part = self.parts.get(index)?;
        let row = at - (part.end - part.values.len());
        if part.values.is_null(row) {
            return Some(None);
        }
        Some(Some(match part.values.data_type() {
            DataType::LargeUtf8 => part.values.as_string::<i64>().value(row),
            DataType::Utf8View => part.values.as_string_view().value(row),
            _ => part.values.as_string::<i32>().value(row),
        }))
    }

    fn len(&self) -> usize {
        self.parts.last().map_or(0, |part| part.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{LargeStringArray, StringArray, StringViewArray};

    #[test]
    fn values_are_found_in_their_part() {
        let mut dictionary = Dictionary::default();
        assert_eq!(dictionary.get(0), None);
        dictionary.add(Arc::new(StringArray::from(vec![Some("a"), None])), Vec::new());
        dictionary.add(Arc::new(StringArray::from(Vec::<&str>::new())), Vec::new());
        dictionary.add(Arc::new(LargeStringArray::from(vec!["c"])), Vec::new());
        dictionary.add(Arc::new(StringViewArray::from(vec!["d"])), Vec::new());
        let all: Vec<_> = (0..5).map(|at| dictionary.get(at)).collect();
        assert_eq!(all, [Some(Some("a")), Some(None), Some(Some("c")), Some(Some("d")), None]);
    }
}
