//! The name of a job that has no name from a scheduler: its program and its script, without what differs from run to run.

use crate::history::History;

/// Programs whose script says what runs.
const INTERPRETERS: [&str; 12] =
    ["python", "sh", "bash", "dash", "zsh", "ksh", "perl", "ruby", "node", "julia", "Rscript", "R"];
/// Programs that only start the one that follows them.
const STARTERS: [&str; 6] = ["env", "nice", "nohup", "time", "setsid", "exec"];

/// Of a command line, as the arguments of the first process. `None` for an interactive shell, which is no job.
pub fn job_name(arguments: &[&[u8]]) -> Option<String> {
    let mut rest = arguments;
    let program = loop {
        let (first, behind) = rest.split_first()?;
        let program = plain(base(first).trim_start_matches('-'));
        rest = behind;
        if !STARTERS.contains(&program.as_str()) {
            break program;
        }
        while rest.first().is_some_and(|word| word.starts_with(b"-") || word.contains(&b'=')) {
            rest = &rest[1..];
        }
    };
    // python3.11 is python.
    let program = match INTERPRETERS.iter().find(|known| is_version_of(&program, known)) {
        Some(known) => format!("{known} {}", script(rest)?),
        None => program,
    };
    let name = steady(&program);
    (!name.is_empty()).then(|| name.chars().take(History::NAME_CHARS_MAX).collect())
}

/// What an interpreter runs: a file, `-m` module, or the first word of a `-c` command.
fn script(arguments: &[&[u8]]) -> Option<String> {
    let mut words = arguments.iter();
    loop {
        let word = words.next()?;
        let word_text = plain(&String::from_utf8_lossy(word));
        match word_text.as_str() {
            "-m" => return words.next().map(|module| format!("-m {}", base(module))),
            "-c" | "-e" => {
                let command = String::from_utf8_lossy(words.next()?).into_owned();
                return command
                    .split_whitespace()
                    .next()
                    .map(|first| format!("-c {}", base(first.as_bytes())));
            }
            option if option.starts_with('-') && option.len() > 1 => {}
            _ => return Some(base(word)),
        }
    }
}

fn is_version_of(program: &str, interpreter: &str) -> bool {
    program.strip_prefix(interpreter).is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

fn base(path: &[u8]) -> String {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    plain(&String::from_utf8_lossy(name))
}

/// Without control characters: it is shown, and stands in a log.
fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// Numbers, and dates and times made of them, become one `#`.
fn steady(name: &str) -> String {
    let mut steady = String::new();
    let mut chars = name.chars().peekable();
    while let Some(c) = chars.next() {
        if !c.is_ascii_digit() {
            steady.push(c);
            continue;
        }
        let between = |c: char| matches!(c, '-' | '_' | ':' | '.' | 'T');
        loop {
            while chars.next_if(char::is_ascii_digit).is_some() {}
            // What joins two numbers goes with them.
            let mut ahead = chars.clone();
            let joined =
                ahead.next().is_some_and(between) && ahead.next().is_some_and(|c| c.is_ascii_digit());
            if !joined {
                break;
            }
            chars.next();
        }
        steady.push('#');
    }
    steady
}

#[cfg(test)]
mod tests {
    //! Goal: runs of one job have one name, other jobs another one. Method: command lines.
    use super::*;

    fn name(line: &str) -> Option<String> {
        let words: Vec<&[u8]> = line.split('|').map(str::as_bytes).collect();
        job_name(&words)
    }

    #[test]
    fn command_lines_have_names() {
        for (line, expected) in [
            ("/usr/bin/python3.11|-u|/home/u/train.py|--epochs|7", Some("python train.py")),
            ("python|-m|torch.distributed.run", Some("python -m torch.distributed.run")),
            ("/bin/sh|/jobs/run_2024-01-05.sh", Some("sh run_#.sh")),
            ("/bin/sh|/jobs/run_2025-11-30.sh|x", Some("sh run_#.sh")),
            ("bash|-c|/opt/gather --step 4", Some("bash -c gather")),
            ("./wrf.exe|namelist.17", Some("wrf.exe")),
            ("env|A=b|nice|-n5|./model_v2.10", Some("model_v#")),
            ("job.20240105T0600.1234", Some("job.#")),
            ("-bash", None),
            ("bash", None),
            ("python3", None),
            ("", None),
        ] {
            assert_eq!(name(line).as_deref(), expected, "{line}");
        }
        assert_eq!(job_name(&[]), None);
        let hostile = job_name(&[b"a\nERROR \x1b[31m\xff"]).unwrap();
        assert!(!hostile.chars().any(char::is_control), "{hostile}");
        assert_eq!(job_name(&[&[b'x'; 4000]]).unwrap().len(), History::NAME_CHARS_MAX);
    }
}
