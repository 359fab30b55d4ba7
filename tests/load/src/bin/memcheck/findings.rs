//! Findings in valgrind's report.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use roxmltree::{Document, Node};

/// Number of frames of a stack that are printed.
const FRAMES: usize = 14;

/// One kind of invalid access, or of loss, at one place.
pub struct Finding {
    kind: String,
    /// The access or loss and, for an access, the owner of the memory. Each part has its stack.
    parts: Vec<Part>,
}

struct Part {
    what: String,
    stack: Vec<Frame>,
}

struct Frame {
    function: String,
    object: String,
}

/// Returns all findings, except memory that was lost outside the module.
pub fn read(file: &Path, module: &Path) -> Result<Vec<Finding>> {
    let module = module.canonicalize()?;
    let module = module.to_str().context("the module's path in UTF-8")?;
    let text = fs::read_to_string(file).context("valgrind wrote nothing")?;
    parse(&text, module)
}

fn parse(text: &str, module: &str) -> Result<Vec<Finding>> {
    let document = Document::parse(text).context("valgrind didn't write to its end")?;
    let errors = document
        .descendants()
        .filter(|node| node.has_tag_name("error"));
    let findings = errors.map(Finding::read);
    Ok(findings
        .filter(|finding| finding.is_access() || finding.is_in(module))
        .collect())
}

impl Finding {
    fn read(error: Node) -> Finding {
        let mut parts: Vec<Part> = Vec::new();
        for node in error.children() {
            match node.tag_name().name() {
                "what" | "auxwhat" => parts.push(Part::new(node.text().unwrap_or_default())),
                "xwhat" => parts.push(Part::new(&text_of(node, "text"))),
                "stack" => {
                    if let Some(part) = parts.last_mut() {
                        part.stack = node
                            .children()
                            .filter(Node::is_element)
                            .map(Frame::read)
                            .collect();
                    }
                }
                _ => {}
            }
        }
        Finding {
            kind: text_of(error, "kind"),
            parts,
        }
    }

    /// Returns true if memory was used that isn't the server's, false if memory was only lost.
    pub fn is_access(&self) -> bool {
        !self.kind.starts_with("Leak_")
    }

    fn is_in(&self, object: &str) -> bool {
        let mut frames = self.parts.iter().flat_map(|part| &part.stack);
        frames.any(|frame| frame.object == object)
    }
}

impl Part {
    fn new(what: &str) -> Part {
        Part {
            what: what.to_owned(),
            stack: Vec::new(),
        }
    }
}

impl Frame {
    fn read(frame: Node) -> Frame {
        Frame {
            function: text_of(frame, "fn"),
            object: text_of(frame, "obj"),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "- {}:", self.kind)?;
        for part in &self.parts {
            write!(out, "\n    {}", part.what)?;
            for frame in part.stack.iter().take(FRAMES) {
                let object = Path::new(&frame.object).file_name().unwrap_or_default();
                write!(out, "\n      {} ({})", frame.function, object.display())?;
            }
        }
        Ok(())
    }
}

fn text_of(node: Node, tag: &str) -> String {
    let child = node.children().find(|child| child.has_tag_name(tag));
    child
        .and_then(|child| child.text())
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str = "/modules/liblock.so";

    fn report(kind: &str, object: &str) -> String {
        format!(
            "<valgrindoutput><error><kind>{kind}</kind><xwhat><text>8 bytes</text></xwhat>\
             <stack><frame><obj>/server</obj><fn>zmalloc</fn></frame>\
             <frame><obj>{object}</obj><fn>load</fn></frame></stack></error></valgrindoutput>"
        )
    }

    #[test]
    fn an_access_counts_wherever_it_was_and_a_loss_only_in_the_module() -> Result<()> {
        for (kind, object, counts) in [
            ("InvalidRead", "/server", true),
            ("InvalidWrite", MODULE, true),
            ("InvalidFree", "/server", true),
            ("Leak_DefinitelyLost", MODULE, true),
            ("Leak_DefinitelyLost", "/server", false),
        ] {
            let findings = parse(&report(kind, object), MODULE)?;
            assert_eq!(findings.len(), usize::from(counts), "{kind} in {object}");
        }
        Ok(())
    }

    #[test]
    fn a_finding_is_told_with_its_stack() -> Result<()> {
        let findings = parse(&report("InvalidRead", MODULE), MODULE)?;
        let told = findings.iter().map(Finding::to_string).collect::<String>();
        let lines: Vec<&str> = told.lines().map(str::trim).collect();
        let wanted = [
            "- InvalidRead:",
            "8 bytes",
            "zmalloc (server)",
            "load (liblock.so)",
        ];
        assert_eq!(lines, wanted);
        Ok(())
    }

    #[test]
    fn a_report_that_breaks_off_is_none() {
        assert!(parse("<valgrindoutput><error>", MODULE).is_err());
    }
}
