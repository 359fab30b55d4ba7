//! What valgrind has written down.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use roxmltree::{Document, Node};

/// How many frames of a stack are told.
const FRAMES: usize = 14;

/// One kind of access, or of loss, at one place.
pub struct Finding {
    kind: String,
    /// What was done and, for an access, whose memory it was; each with its stack.
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

/// All findings but those of memory that was lost without the module.
pub fn read(file: &Path, module: &Path) -> Result<Vec<Finding>> {
    let module = module.canonicalize()?;
    let module = module.to_str().context("the module's path in UTF-8")?;
    let text = fs::read_to_string(file).context("valgrind wrote nothing")?;
    let document = Document::parse(&text).context("valgrind didn't write to its end")?;
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

    /// Whether memory was used that isn't the server's, and not just lost.
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
