//! One thing that was looked at.

use serde::Serialize;

/// See the module.
#[derive(Serialize)]
pub(super) struct Finding {
    /// What.
    pub name: String,
    pub ok: bool,
    /// What was found.
    pub detail: String,
    /// What to do about it, if it is not as one would wish.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub advice: String,
}

/// A finding.
pub(super) fn finding(name: &str, ok: bool, detail: impl Into<String>, advice: &str) -> Finding {
    Finding { name: name.to_string(), ok, detail: detail.into(), advice: advice.to_string() }
}
