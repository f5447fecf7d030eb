//! `onfs config`.

use serde::Serialize;

use super::settings::{read, settings, wrong};
use crate::{
    args::ConfigCommand,
    config::{Config, Host, Settings},
    exit::{Failure, Outcome},
    render::{
        self,
        table::{Align, Table},
    },
};

pub fn config(command: &ConfigCommand) -> Outcome {
    let host = Host::detect();
    match command {
        ConfigCommand::Check { config, mountpoint, output } => {
            let (settings, mut errors) = read(config, &host)?;
            let mountpoint = std::path::absolute(mountpoint)
                .map_err(|e| Failure::usage(format!("{}: {e}", mountpoint.display())))?;
            if errors.is_empty() {
                errors.extend(Config::resolve(&settings, &host, &mountpoint).err());
            }
            if output.json {
                let texts = errors.iter().map(ToString::to_string).collect();
                render::json(&Verdict { correct: errors.is_empty(), errors: texts })?;
            } else if errors.is_empty() {
                render::print("the configuration is correct\n")?;
            }
            if errors.is_empty() { Ok(()) } else { Err(wrong(&errors)) }
        }
        ConfigCommand::Show { config, origin, output } => {
            let settings = settings(config, &host)?;
            if output.json {
                render::json(&rows(&settings))
            } else {
                render::print(&table(&settings, *origin))
            }
        }
    }
}

#[derive(Serialize)]
struct Verdict {
    correct: bool,
    errors: Vec<String>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    value: String,
    default: &'static str,
    origin: String,
    unit: &'static str,
    range: String,
    doc: &'static str,
}

fn rows(settings: &Settings) -> Vec<Row> {
    let row = |entry: &crate::config::Entry| Row {
        name: entry.setting.name(),
        value: entry.value.to_string(),
        default: entry.setting.default,
        origin: entry.origin.to_string(),
        unit: entry.setting.kind.unit(),
        range: entry.setting.kind.range(),
        doc: entry.setting.doc,
    };
    settings.entries().iter().map(row).collect()
}

fn table(settings: &Settings, origin: bool) -> String {
    let columns: &[(&str, Align)] =
        &[("setting", Align::Left), ("value", Align::Left), ("from", Align::Left)];
    let mut table = Table::new(&columns[..if origin { 3 } else { 2 }]);
    for entry in settings.entries() {
        let value = entry.value.to_string();
        let value = if value.is_empty() { "\"\"".to_owned() } else { value };
        table.row([entry.setting.name(), value, entry.origin.to_string()]);
    }
    table.render(0)
}
