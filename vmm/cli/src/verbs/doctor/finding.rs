//! The result of one examination.

use serde::Serialize;

/// The result of one examination.
#[derive(Serialize)]
pub(super) struct Finding {
    /// The name of the examined part of the host.
    pub name: String,
    pub ok: bool,
    /// The result as text.
    pub detail: String,
    /// Advice for the user, if the result is bad.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub advice: String,
}

/// Makes a finding.
pub(super) fn finding(name: &str, ok: bool, detail: impl Into<String>, advice: &str) -> Finding {
    Finding { name: name.to_string(), ok, detail: detail.into(), advice: advice.to_string() }
}
