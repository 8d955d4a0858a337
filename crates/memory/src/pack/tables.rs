//! Permutations, worked out by the compiler.

/// Aligned so that a vector load of an entry touches one cache line.
#[repr(align(64))]
pub(super) struct Aligned<T>(pub(super) T);

/// For each 8 bits: where the set ones of eight 4-byte values go.
pub(super) static ORDER_4: Aligned<[[u32; 8]; 256]> = Aligned(order_4());
/// For each 4 bits: the same of four 8-byte values, as pairs of 4 bytes.
pub(super) static ORDER_8: Aligned<[[u32; 8]; 16]> = Aligned(order_8());
/// For each 8 bits: the same of eight 2-byte values, as bytes.
pub(super) static ORDER_2: Aligned<[[u8; 16]; 256]> = Aligned(order_2());

const fn order_4() -> [[u32; 8]; 256] {
    let mut out = [[0; 8]; 256];
    let mut bits = 0;
    while bits < 256 {
        let (mut lane, mut next) = (0, 0);
        while lane < 8 {
            if bits >> lane & 1 == 1 {
                out[bits][next] = lane;
                next += 1;
            }
            lane += 1;
        }
        bits += 1;
    }
    out
}

const fn order_8() -> [[u32; 8]; 16] {
    let four = order_4();
    let mut out = [[0; 8]; 16];
    let mut bits = 0;
    while bits < 16 {
        let mut lane = 0;
        while lane < 4 {
            out[bits][2 * lane] = 2 * four[bits][lane];
            out[bits][2 * lane + 1] = 2 * four[bits][lane] + 1;
            lane += 1;
        }
        bits += 1;
    }
    out
}

const fn order_2() -> [[u8; 16]; 256] {
    let four = order_4();
    let mut out = [[0; 16]; 256];
    let mut bits = 0;
    while bits < 256 {
        let mut lane = 0;
        while lane < 8 {
            out[bits][2 * lane] = 2 * four[bits][lane] as u8;
            out[bits][2 * lane + 1] = 2 * four[bits][lane] as u8 + 1;
            lane += 1;
        }
        bits += 1;
    }
    out
}

/// How 16 rows of `R` columns of 4 bytes are put together from two columns at a time.
pub(super) struct Rows4<const R: usize>;

impl<const R: usize> Rows4<R> {
    /// By vector of the rows and pair of columns: which of the pair's 32 values goes to each lane.
    pub(super) const ORDER: [[[u32; 16]; 4]; 8] = rows_order(R);
    /// By vector and pair: the lanes that the pair fills.
    pub(super) const MASK: [[u16; 4]; 8] = rows_mask(R);
}

const fn rows_order(columns: usize) -> [[[u32; 16]; 4]; 8] {
    let mut out = [[[0; 16]; 4]; 8];
    let mut lane = 0;
    while lane < 16 * columns {
        let (row, column) = (lane / columns, lane % columns);
        out[lane / 16][column / 2][lane % 16] = (row + 16 * (column % 2)) as u32;
        lane += 1;
    }
    out
}

const fn rows_mask(columns: usize) -> [[u16; 4]; 8] {
    let mut out = [[0; 4]; 8];
    let mut lane = 0;
    while lane < 16 * columns {
        out[lane / 16][lane % columns / 2] |= 1 << (lane % 16);
        lane += 1;
    }
    out
}
