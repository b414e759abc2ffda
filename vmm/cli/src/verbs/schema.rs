//! `ttvm schema`: describes the JSON that other verbs print.

use clap::ValueEnum;
use machine::error::{Error, exit_code};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use views::board::Board;
use views::calls::Calls;
use views::hits::Found;
use views::object::Object;
use views::profile::Profile;
use views::reports::ReportList;
use views::state::State;
use views::tree::Tree;
use views::values::Values;

use super::{diff, disk};

/// Describe the JSON that a verb prints, as a JSON Schema
///
/// The description has the name, the type, the unit and the meaning of each field.
///
/// Examples:
///   ttvm schema calls
///   ttvm schema who-set > who-set.schema.json
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The verb that prints the JSON
    verb: Verb,
}

/// The verbs whose answers have a schema.
#[derive(Clone, Copy, ValueEnum)]
enum Verb {
    Board,
    Calls,
    Diff,
    Disk,
    Object,
    Origin,
    Profile,
    Reports,
    Search,
    State,
    Tree,
    Values,
    WhereTo,
    WhoSet,
}

pub fn run(args: &Args) -> Result<i32, Error> {
    let schema = of_verb(args.verb);
    crate::output::print(&serde_json::to_string_pretty(&schema).expect("plain data always serializes"))?;
    Ok(exit_code::DONE)
}

fn of_verb(verb: Verb) -> Schema {
    match verb {
        Verb::Board => of::<Board>(),
        Verb::Calls => of::<Calls>(),
        Verb::Diff => of::<diff::Printed>(),
        Verb::Disk => of::<disk::Printed>(),
        Verb::Object => of::<Object>(),
        Verb::Origin => of::<origins::Arming>(),
        Verb::Profile => of::<Profile>(),
        Verb::Reports => of::<ReportList>(),
        Verb::Search => of::<Found>(),
        Verb::State => of::<State>(),
        Verb::Tree => of::<Tree>(),
        Verb::Values => of::<Values>(),
        Verb::WhereTo => of::<origins::Onward>(),
        Verb::WhoSet => of::<origins::Answer>(),
    }
}

/// The schema of an answer, as ttvm prints the answer.
fn of<T: JsonSchema>() -> Schema {
    SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<T>()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// The properties in a schema that have no description. The field that tells variants apart needs none.
    fn undescribed(schema: &Value, found: &mut Vec<String>) {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let is_tag = property.get("const").is_some();
            if !is_tag && property.get("description").is_none() && property.get("$ref").is_none() {
                found.push(name.clone());
            }
        }
        let parts: Vec<&Value> = match schema {
            Value::Object(parts) => parts.values().collect(),
            Value::Array(parts) => parts.iter().collect(),
            _ => Vec::new(),
        };
        parts.into_iter().for_each(|part| undescribed(part, found));
    }

    #[test]
    fn each_field_of_each_answer_is_described() {
        for verb in Verb::value_variants() {
            let schema = of_verb(*verb);
            let mut found = Vec::new();
            undescribed(schema.as_value(), &mut found);
            assert!(found.is_empty(), "{found:?} in {schema:#?}");
            assert!(schema.get("description").is_some() || schema.get("anyOf").is_some(), "{schema:#?}");
        }
    }
}
