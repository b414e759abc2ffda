//! The progress of a replay. If standard error is a terminal, the progress is a bar. Otherwise no progress is shown.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// A bar for a replay of `length` instructions. `show` is false if the guest's console goes to the same terminal,
/// because the bar would mix with the console's output.
pub fn bar(length: u64, show: bool) -> ProgressBar {
    let target = if show { ProgressDrawTarget::stderr_with_hz(5) } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(length), target);
    bar.set_style(style());
    bar
}

/// A bar for a file of this size, on standard error if that is a terminal.
pub fn bytes_bar(message: &'static str, size_bytes: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(size_bytes), ProgressDrawTarget::stderr_with_hz(5));
    let template = "{msg} {bar:30} {percent:>3} %  {bytes}  {binary_bytes_per_sec}  {eta} left";
    bar.set_style(ProgressStyle::with_template(template).expect("the template is a constant that is right"));
    bar.set_message(message);
    bar
}

/// Moves a bar if it is shown. A hidden bar is not moved, because it would still compute its speed.
pub fn show(bar: &ProgressBar, position: u64) {
    if !bar.is_hidden() {
        bar.set_position(position);
    }
}

fn style() -> ProgressStyle {
    let template = "{msg} {bar:30} {percent:>3} %  {instructions} Minsn  {speed} MIPS  {eta} left";
    ProgressStyle::with_template(template)
        .expect("the template is a constant that is right")
        .with_key("instructions", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let _ = write!(out, "{:.0}", state.pos() as f64 / 1e6);
        })
        .with_key("speed", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let _ = write!(out, "{:.0}", state.per_sec() / 1e6);
        })
}
