//! Every option that LOCK.HELP names, in upper, lower and mixed case.

use support::{Client, Expect, Server};

/// Returns each option of a syntax with the words that it needs before it and the words that follow
/// it: `[SHARED [LIMIT n]]` gives `SHARED` and `SHARED LIMIT n`.
fn options(syntax: &str) -> Vec<String> {
    let mut options = Vec::new();
    // The words of each bracket that is open.
    let mut open: Vec<String> = Vec::new();
    let spaced = syntax.replace('[', " [ ").replace(']', " ] ");
    let mut has_ended = false;
    for word in spaced.split_whitespace() {
        let ends = ["[", "]", "|"].contains(&word);
        if let (true, false, Some(words)) = (ends, has_ended, open.last()) {
            if words.starts_with(char::is_uppercase) {
                let outer = open[..open.len() - 1].join(" ");
                options.push(format!("{outer} {words}").trim().to_owned());
            }
        }
        has_ended = word == "]";
        match (word, open.last_mut()) {
            ("[", _) => open.push(String::new()),
            ("]", _) => drop(open.pop()),
            ("|", Some(words)) => words.clear(),
            (word, Some(words)) => *words = format!("{words} {word}").trim().to_owned(),
            _ => {}
        }
    }
    options
}

/// Returns a value for each word of a syntax that isn't a word of the language.
fn value(word: &str, key: &str) -> String {
    match word {
        "key" => key,
        "token" => "a",
        "ms" => "60000",
        "s" => "60",
        "n" => "3",
        "m" => "2",
        "numkeys" | "count" => "1",
        "bytes" | "channel" | "message" => "x",
        word => word,
    }
    .to_owned()
}

/// Returns what a command replied and what it did to its key, without times and fences.
fn outcome(client: &mut Client, command: &str, key: &str) -> String {
    let reply = client.call(command);
    let info = client.call(format!("LOCK.INFO {key}"));
    let text = format!("{reply:?} {info:?}").replace(key, "key");
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let is_number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
    let kept = words.iter().enumerate().filter(|(at, word)| {
        let is_time = *at > 1 && words[at - 2..*at] == ["ms", "int"];
        !is_number(word) || (word.len() < 5 && !is_time)
    });
    kept.map(|(_, word)| *word).collect::<Vec<_>>().join(" ")
}

#[test]
fn every_command_and_option_may_be_spelt_in_any_case() {
    let server = Server::start();
    let mut client = server.client();
    let mixed = |word: &str| {
        let letters = word.char_indices();
        letters
            .map(|(at, letter)| match at % 2 {
                0 => letter.to_ascii_lowercase(),
                _ => letter.to_ascii_uppercase(),
            })
            .collect()
    };
    let cases: [&dyn Fn(&str) -> String; 3] = [&str::to_uppercase, &str::to_lowercase, &mixed];
    let help = server.call("LOCK.HELP").list();
    let help: Vec<String> = help.into_iter().map(|line| Ok(line).text()).collect();
    let mut tried = 0;
    for syntax in help.iter().filter(|line| line.starts_with("LOCK.")) {
        let syntax = syntax.replace(" [key ...]", "");
        let first = syntax.split(" [").next().expect("a command");
        for option in options(&syntax).iter().map(String::as_str).chain([""]) {
            let outcomes = cases.map(|spelt| {
                let key = format!("key{tried}");
                tried += 1;
                let free = ["ACQUIRE", "WAIT", "QUEUE"];
                if !free.iter().any(|name| first.contains(name)) {
                    client.call(format!("LOCK.ACQUIRE {key} a HOLDS 2")).grant();
                }
                let words = format!("{first} {option}");
                let words = words.split_whitespace().map(|word| match word {
                    word if word.starts_with(char::is_uppercase) => spelt(word),
                    word => value(word, &key),
                });
                outcome(&mut client, &words.collect::<Vec<_>>().join(" "), &key)
            });
            assert!(
                !outcomes[0].contains("syntax"),
                "{first} {option}: {outcomes:?}"
            );
            assert_eq!(outcomes[0], outcomes[1], "{first} {option} in lower case");
            assert_eq!(outcomes[0], outcomes[2], "{first} {option} in mixed case");
        }
    }
    assert!(tried > 3 * 60, "only {tried} commands");
}
