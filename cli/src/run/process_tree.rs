//! A process and its descendants.

#[cfg(target_os = "linux")]
pub use linux::ProcessTree;
#[cfg(not(target_os = "linux"))]
pub use other::ProcessTree;

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::HashMap;
    use std::fs;
    use std::os::fd::OwnedFd;
    use std::time::Instant;

    use rustix::event::{poll, PollFd, PollFlags, Timespec};
    use rustix::process::{self, Pid, PidfdFlags, Signal};

    /// A process and its descendants at one moment. Each is held by a descriptor, because its ID
    /// may belong to another process when a signal is sent.
    pub struct ProcessTree {
        members: Vec<(Pid, OwnedFd)>,
    }

    impl ProcessTree {
        pub fn of(first: Pid) -> ProcessTree {
            let mut tree = ProcessTree {
                members: Vec::new(),
            };
            tree.add(first);
            tree.grow();
            tree
        }

        /// Adds the descendants that were started since. Returns false if there are none.
        pub fn grow(&mut self) -> bool {
            let before = self.members.len();
            let children = children();
            let mut index = 0;
            while let Some((member, _)) = self.members.get(index) {
                for child in children.get(member).into_iter().flatten() {
                    self.add(*child);
                }
                index += 1;
            }
            self.members.len() > before
        }

        pub fn has(&self, id: Pid) -> bool {
            self.members.iter().any(|(member, _)| *member == id)
        }

        /// Waits until all members have ended, or until `end`.
        pub fn until_gone(&self, end: Instant) {
            for (_, descriptor) in &self.members {
                let left = end.saturating_duration_since(Instant::now());
                let Ok(left) = Timespec::try_from(left) else {
                    return;
                };
                // The descriptor is readable once the process has ended. A signal only shortens the
                // wait.
                let _ = poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&left));
            }
        }

        pub fn send(&self, signal: Signal) {
            for (_, descriptor) in &self.members {
                // The process may have ended.
                let _ = process::pidfd_send_signal(descriptor, signal);
            }
        }

        fn add(&mut self, id: Pid) {
            if self.has(id) {
                return;
            }
            if let Ok(descriptor) = process::pidfd_open(id, PidfdFlags::empty()) {
                self.members.push((id, descriptor));
            }
        }
    }

    /// Returns the children of every process.
    fn children() -> HashMap<Pid, Vec<Pid>> {
        let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        for entry in entries {
            let id = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            let parent = fs::read_to_string(entry.path().join("stat")).ok();
            let parent = parent.and_then(|stat| parent_in(&stat));
            if let (Some(id), Some(parent)) = (id.and_then(Pid::from_raw), parent) {
                children.entry(parent).or_default().push(id);
            }
        }
        children
    }

    /// Returns the parent's ID from a line of /proc/PID/stat. It follows the state. The state
    /// follows a name in parentheses, which may contain any bytes.
    fn parent_in(stat: &str) -> Option<Pid> {
        let (_, rest) = stat.rsplit_once(')')?;
        Pid::from_raw(rest.split_whitespace().nth(1)?.parse().ok()?)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_name_with_brackets_hides_no_parent() {
            assert_eq!(parent_in("7 (a) 5 (b)) S 42 7 7"), Pid::from_raw(42));
            assert_eq!(parent_in("7 (kthreadd) S 0 0"), None);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use std::time::Instant;

    use rustix::process::{self, Pid, Signal};

    /// The first process alone, because other systems don't list descendants in the same way.
    pub struct ProcessTree {
        first: Pid,
    }

    impl ProcessTree {
        pub fn of(first: Pid) -> ProcessTree {
            ProcessTree { first }
        }

        pub fn grow(&mut self) -> bool {
            false
        }

        pub fn has(&self, id: Pid) -> bool {
            self.first == id
        }

        pub fn until_gone(&self, _end: Instant) {}

        pub fn send(&self, signal: Signal) {
            // The process may have ended.
            let _ = process::kill_process(self.first, signal);
        }
    }
}
