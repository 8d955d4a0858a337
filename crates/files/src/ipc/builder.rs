//! Flatbuffers written front to back: a parent first, its children after it, offsets patched in.

/// A buffer being built.
pub struct Builder {
    bytes: Vec<u8>,
}

/// A field of a table.
#[derive(Clone, Copy)]
pub enum Value {
    /// Absent: readers take the default.
    Absent,
    /// A byte or a boolean.
    U8(u8),
    /// A 16-bit integer.
    I16(i16),
    /// A 32-bit integer.
    I32(i32),
    /// A 64-bit integer.
    I64(i64),
    /// An offset to be given by [`Builder::point`].
    Offset,
}

impl Value {
    fn size(self) -> usize {
        match self {
            Value::Absent => 0,
            Value::U8(_) => 1,
            Value::I16(_) => 2,
            Value::I32(_) | Value::Offset => 4,
            Value::I64(_) => 8,
        }
    }
}

/// Places whose offsets are still to be given: a table's fields, or a vector's elements.
pub struct Slots {
    /// Where the table or the vector begins.
    pub at: usize,
    places: Vec<usize>,
}

impl Builder {
    /// A buffer with the root table of `fields`.
    pub fn new(fields: &[Value]) -> (Builder, Slots) {
        let mut builder = Builder { bytes: vec![0; 4] };
        let root = builder.table(fields);
        builder.patch(0, root.at);
        (builder, root)
    }

    /// Appends a table.
    pub fn table(&mut self, fields: &[Value]) -> Slots {
        let vtable_bytes = 4 + 2 * fields.len();
        // The table begins 8-aligned, right behind its vtable.
        while !(self.bytes.len() + vtable_bytes).is_multiple_of(8) {
            self.bytes.push(0);
        }
        let vtable = self.bytes.len();
        let at = vtable + vtable_bytes;
        let mut end = 4usize;
        let offsets: Vec<usize> = fields
            .iter()
            .map(|field| match field.size() {
                0 => 0,
                size => {
                    let offset = end.next_multiple_of(size);
                    end = offset + size;
                    offset
                }
            })
            .collect();
        self.bytes.extend((vtable_bytes as u16).to_le_bytes());
        self.bytes.extend((end as u16).to_le_bytes());
        for offset in &offsets {
            self.bytes.extend((*offset as u16).to_le_bytes());
        }
        self.bytes.resize(at + end, 0);
        self.write(at, &(vtable_bytes as i32).to_le_bytes());
        for (field, offset) in fields.iter().zip(&offsets) {
            match field {
                Value::Absent | Value::Offset => {}
                Value::U8(value) => self.write(at + offset, &value.to_le_bytes()),
                Value::I16(value) => self.write(at + offset, &value.to_le_bytes()),
                Value::I32(value) => self.write(at + offset, &value.to_le_bytes()),
                Value::I64(value) => self.write(at + offset, &value.to_le_bytes()),
            }
        }
        Slots { at, places: offsets.into_iter().map(|offset| at + offset).collect() }
    }

    /// Appends a text; returns where it begins.
    pub fn text(&mut self, text: &str) -> usize {
        self.align(4, 0);
        let at = self.bytes.len();
        self.bytes.extend((text.len() as u32).to_le_bytes());
        self.bytes.extend(text.as_bytes());
        self.bytes.push(0);
        at
    }

    /// Appends a vector of offsets.
    pub fn offsets(&mut self, count: usize) -> Slots {
        self.align(4, 0);
        let at = self.bytes.len();
        self.bytes.extend((count as u32).to_le_bytes());
        self.bytes.resize(at + 4 + 4 * count, 0);
        Slots { at, places: (0..count).map(|index| at + 4 + 4 * index).collect() }
    }

    /// Appends a vector of 8-aligned structures; returns where it begins.
    pub fn structs<const SIZE: usize>(&mut self, structs: &[[u8; SIZE]]) -> usize {
        self.align(8, 4);
        let at = self.bytes.len();
        self.bytes.extend((structs.len() as u32).to_le_bytes());
        self.bytes.extend(structs.as_flattened());
        at
    }

    /// Lets field or element `index` of `slots` refer to what begins at `target`.
    pub fn point(&mut self, slots: &Slots, index: usize, target: usize) {
        self.patch(slots.places[index], target);
    }

    /// The finished buffer.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    fn patch(&mut self, place: usize, target: usize) {
        // Children follow their parents, so the distance is positive.
        self.write(place, &((target - place) as u32).to_le_bytes());
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn align(&mut self, to: usize, before: usize) {
        while self.bytes.len() % to != before {
            self.bytes.push(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::flatbuffer::{Table, i64_at};
    use super::*;

    fn sample() -> Vec<u8> {
        use Value::*;
        let (mut builder, root) = Builder::new(&[I16(4), Offset, U8(1), I64(-5), Absent, Offset, I32(7), Offset]);
        let text = builder.text("caf\u{e9}");
        builder.point(&root, 1, text);
        let children = builder.offsets(2);
        builder.point(&root, 5, children.at);
        for index in 0..2 {
            let child = builder.table(&[I32(index as i32 + 40)]);
            builder.point(&children, index, child.at);
        }
        let structs = builder.structs(&[1i64.to_le_bytes(), (-2i64).to_le_bytes()]);
        builder.point(&root, 7, structs);
        builder.finish()
    }

    #[test]
    fn what_was_built_reads_back() {
        let bytes = sample();
        let root = Table::root(&bytes).unwrap();
        assert_eq!(root.i16(0, 0).unwrap(), 4);
        assert_eq!(root.text(1).unwrap(), Some("caf\u{e9}"));
        assert!(root.bool(2).unwrap());
        assert_eq!(root.i64(3).unwrap(), -5);
        assert_eq!(root.i32(4, 99).unwrap(), 99);
        assert_eq!(root.tables(5).unwrap()[1].i32(0, 0).unwrap(), 41);
        assert_eq!(root.i32(6, 0).unwrap(), 7);
        assert_eq!(i64_at(&root.structs::<8>(7).unwrap()[1], 0), -2);
        assert_eq!(root.text(8).unwrap(), None);
    }

    #[test]
    fn no_damage_of_a_byte_and_no_truncation_makes_an_access_panic() {
        let whole = sample();
        let visit = |bytes: &[u8]| -> anyhow::Result<()> {
            let root = Table::root(bytes)?;
            root.text(1)?;
            root.i64(3)?;
            for child in root.tables(5)? {
                child.i32(0, 0)?;
            }
            root.structs::<8>(7)?;
            Ok(())
        };
        visit(&whole).unwrap();
        for at in 0..whole.len() {
            let _ = visit(&whole[..at]);
            for value in 0..=255 {
                let mut bytes = whole.clone();
                bytes[at] = value;
                let _ = visit(&bytes);
            }
        }
    }
}
