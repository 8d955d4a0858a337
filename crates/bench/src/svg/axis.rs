//! Axes: from a value to a place, and where the ticks go.

/// How values are spread over an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// From zero.
    Linear,
    /// By decades.
    Log,
}

/// An axis over values `low..=high`.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl Axis {
    /// An axis that shows all of `values`, ending on a tick where it is linear.
    pub fn over(scale: Scale, values: impl IntoIterator<Item = f64>) -> Axis {
        let usable = |v: &f64| v.is_finite() && (scale == Scale::Linear || *v > 0.0);
        let (mut low, mut high) = (f64::INFINITY, 0.0f64);
        for value in values.into_iter().filter(usable) {
            low = low.min(value);
            high = high.max(value);
        }
        match scale {
            Scale::Linear => Axis::linear(high),
            Scale::Log if high > 0.0 => Axis::log(low, high),
            Scale::Log => Axis::log(1.0, 10.0),
        }
    }

    fn linear(high: f64) -> Axis {
        let high = if high > 0.0 { high } else { 1.0 };
        let rough = high / TICKS_WANTED;
        let magnitude = 10f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
        let step = steps.iter().map(|s| s * magnitude);
        let step = step.clone().find(|s| *s >= rough).unwrap_or(rough);
        let count = (high / step - 1e-9).ceil();
        Axis {
            scale: Scale::Linear,
            low: 0.0,
            high: step * count,
            ticks: (0..=count as usize).map(|at| at as f64 * step).collect(),
        }
    }

    /// From a tick below the least value, so that its bar is seen, to one at or above
    /// the largest, of 1, 2 and 5.
    fn log(low: f64, high: f64) -> Axis {
        let first = (low * SEEN).log10().floor() as i32;
        let last = high.log10().ceil() as i32;
        let all: Vec<f64> =
            (first..=last).flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(decade))).collect();
        let below = all.iter().rposition(|t| *t <= low * SEEN);
        let above = all.iter().position(|t| *t >= high * (1.0 - 1e-9));
        let (below, mut above) = (below.unwrap_or(0), above.unwrap_or(all.len() - 1));
        if above == below {
            above = (above + 1).min(all.len() - 1);
        }
        let mut ticks = all[below..=above].to_vec();
        let ends = (ticks[0], ticks[ticks.len() - 1]);
        if ticks.len() > LOG_TICKS_MAX {
            ticks.retain(|tick| (tick.log10() - tick.log10().round()).abs() < 1e-9);
        }
        Axis { scale: Scale::Log, low: ends.0, high: ends.1, ticks }
    }

    /// The values that get a tick.
    pub fn ticks(&self) -> &[f64] {
        &self.ticks
    }

    /// The end of the axis.
    pub fn high(&self) -> f64 {
        self.high
    }

    /// Where `value` lies on the axis: 0 at its start, 1 at its end; values outside lie on the
    /// ends.
    pub fn place(&self, value: f64) -> f64 {
        let place = match self.scale {
            Scale::Linear => value / self.high,
            Scale::Log if value <= 0.0 => 0.0,
            Scale::Log => (value / self.low).log10() / (self.high / self.low).log10(),
        };
        if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// A tick's value, with as few digits as tell it from its neighbours.
pub(super) fn label(value: f64) -> String {
    let size = value.abs();
    let text = if size >= 1000.0 || size == 0.0 {
        format!("{value:.0}")
    } else if size >= 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.4}")
    };
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

const TICKS_WANTED: f64 = 5.0;
/// The shortest bar on a logarithmic axis begins at least this far below its value.
const SEEN: f64 = 0.7;
const LOG_TICKS_MAX: usize = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_axes_start_at_zero_and_end_on_a_tick() {
        let axis = Axis::over(Scale::Linear, [3.0, 8.7, f64::NAN]);
        assert_eq!(axis.ticks(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!((axis.place(0.0), axis.place(5.0), axis.place(99.0)), (0.0, 0.5, 1.0));
        assert_eq!(Axis::over(Scale::Linear, []).high(), 1.0);
        let exact = Axis::over(Scale::Linear, [10.0]);
        assert_eq!(exact.high(), 10.0);
    }

    #[test]
    fn log_axes_hold_all_values_and_skip_what_is_not_positive() {
        let axis = Axis::over(Scale::Log, [0.03, 2.4, 0.0]);
        assert_eq!(axis.ticks(), [0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0].as_slice());
        assert_eq!((axis.place(0.02), axis.place(5.0), axis.place(0.0)), (0.0, 1.0, 0.0));
        let wide = Axis::over(Scale::Log, [1.0, 1e6]);
        assert_eq!(wide.ticks().len(), 7);
        let one = Axis::over(Scale::Log, [5.0]);
        assert!(one.high() == 5.0 && one.place(5.0) == 1.0 && one.place(2.0) == 0.0, "{one:?}");
    }

    #[test]
    fn labels_are_short() {
        let labels = [0.0, 0.05, 0.5, 2.0, 2.5, 10.0, 12000.0].map(label);
        assert_eq!(labels, ["0", "0.05", "0.5", "2", "2.5", "10", "12000"]);
    }
}
