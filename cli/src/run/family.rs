//! A process with those that it started, and they.

#[cfg(target_os = "linux")]
pub use linux::Family;
#[cfg(not(target_os = "linux"))]
pub use other::Family;

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::HashMap;
    use std::fs;
    use std::os::fd::OwnedFd;
    use std::time::Instant;

    use rustix::event::{poll, PollFd, PollFlags, Timespec};
    use rustix::process::{self, Pid, PidfdFlags, Signal};

    /// All of them as they were at a time. Each is held by a descriptor: its number may be another's by
    /// the time that it is sent a signal.
    pub struct Family {
        members: Vec<(Pid, OwnedFd)>,
    }

    impl Family {
        pub fn of(first: Pid) -> Family {
            let mut family = Family {
                members: Vec::new(),
            };
            family.add(first);
            family.grow();
            family
        }

        /// Adds who was started since; false where nobody was.
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

        /// Waits until all have ended, or until then.
        pub fn until_gone(&self, end: Instant) {
            for (_, descriptor) in &self.members {
                let left = end.saturating_duration_since(Instant::now());
                let Ok(left) = Timespec::try_from(left) else {
                    return;
                };
                // Readable once it has ended. A signal that comes meanwhile only shortens the wait.
                let _ = poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&left));
            }
        }

        pub fn send(&self, signal: Signal) {
            for (_, descriptor) in &self.members {
                // It may have ended.
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

    /// The children of every process.
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

    /// The parent stands behind the state, which stands behind a name in brackets that may hold anything.
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

    /// The first alone: no system tells in the same way of the others.
    pub struct Family {
        first: Pid,
    }

    impl Family {
        pub fn of(first: Pid) -> Family {
            Family { first }
        }

        pub fn grow(&mut self) -> bool {
            false
        }

        pub fn has(&self, id: Pid) -> bool {
            self.first == id
        }

        pub fn until_gone(&self, _end: Instant) {}

        pub fn send(&self, signal: Signal) {
            // It may have ended.
            let _ = process::kill_process(self.first, signal);
        }
    }
}
