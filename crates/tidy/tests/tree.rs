//! Goal: the tree keeps its own rules. Method: each check over the whole repository; no findings allowed.

use anyhow::Result;

fn none(found: Vec<String>) {
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn dependencies_point_down() -> Result<()> {
    let (names, edges) = tidy::layers::edges()?;
    none(tidy::layers::check(&names, &edges));
    Ok(())
}

#[test]
fn files_do_not_import_each_other_in_circles() -> Result<()> {
    none(tidy::imports::check()?);
    Ok(())
}

#[test]
fn files_are_short_named_and_documented() -> Result<()> {
    none(tidy::files::check()?);
    Ok(())
}

#[test]
fn functions_are_short() -> Result<()> {
    none(tidy::functions::check()?);
    Ok(())
}

#[test]
fn scripts_parse() -> Result<()> {
    none(tidy::files::check_scripts()?);
    Ok(())
}

#[test]
fn links_lead_somewhere() -> Result<()> {
    none(tidy::links::check()?);
    Ok(())
}
