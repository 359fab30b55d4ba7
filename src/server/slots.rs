//! The slots of a cluster: those of this node and those of other nodes.

use std::collections::HashSet;

use redis_lock_core::values::slot;

use crate::server::api;

/// The slots that other nodes serve, as far as this node knows, except slots that migrate to this
/// node.
pub struct ForeignSlots(HashSet<u16>);

impl ForeignSlots {
    /// Returns the slots as they are now.
    pub fn now() -> Self {
        let nodes = api::call_text(&api::own_context(), "CLUSTER", &["NODES"]).unwrap_or_default();
        let mut elsewhere = HashSet::new();
        let mut here = Vec::new();
        for line in String::from_utf8_lossy(&nodes).lines() {
            let (is_this_one, slots) = node(line);
            if is_this_one {
                here = slots;
            } else {
                elsewhere.extend(slots);
            }
        }
        for slot in here {
            elsewhere.remove(&slot);
        }
        Self(elsewhere)
    }

    /// Returns true if another node serves a key.
    pub fn has(&self, key: &[u8]) -> bool {
        self.0.contains(&slot::of_key(key))
    }
}

/// Returns the first slot of this node, or of its primary if this node is a replica. For a node that
/// serves none, this is the first that migrates to it.
pub fn first_served() -> Option<u16> {
    let nodes = api::call_text(&api::own_context(), "CLUSTER", &["NODES"])?;
    let nodes = String::from_utf8_lossy(&nodes);
    let own = nodes.lines().find(|line| node(line).0)?;
    let primary_id = own.split_whitespace().nth(3).filter(|id| *id != "-");
    let serving = match primary_id {
        Some(id) => nodes.lines().find(|line| line.starts_with(id))?,
        None => own,
    };
    node(serving).1.into_iter().next()
}

/// Returns true if a line of CLUSTER NODES is about this node, and the slots that it lists: `5`,
/// `5-9`, or `[5-<-other]` if the slot migrates here. A slot that migrates away, `[5->-other]`, is
/// also listed in the first or second form.
fn node(line: &str) -> (bool, Vec<u16>) {
    let mut words = line.split_whitespace();
    let flags = words.nth(2).unwrap_or_default();
    let is_this_one = flags.split(',').any(|flag| flag == "myself");
    let ranges = words.skip(5).filter_map(|word| {
        let (first, last) = match word.strip_prefix('[') {
            Some(on_its_way) => {
                let (slot, _) = on_its_way.split_once("-<-")?;
                (slot, slot)
            }
            None => word.split_once('-').unwrap_or((word, word)),
        };
        Some(first.parse::<u16>().ok()?..=last.parse().ok()?)
    });
    (is_this_one, ranges.flatten().collect())
}
