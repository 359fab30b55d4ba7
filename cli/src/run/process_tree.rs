//! A process and its descendants. A process whose parent has ended is not among them.

#[cfg(target_os = "linux")]
pub use linux::ProcessTree;
#[cfg(not(target_os = "linux"))]
pub use other::ProcessTree;

#[cfg(target_os = "linux")]
mod linux {
    use std::fs;
    use std::os::fd::OwnedFd;
    use std::time::{Duration, Instant};

    use rustix::event::{poll, PollFd, PollFlags, Timespec};
    use rustix::process::{self, Pid, PidfdFlags, Signal};

    /// The longest time to look for new processes before a kill. This process may not have the right
    /// to stop them.
    const STOPPED_WITHIN: Duration = Duration::from_millis(100);

    /// A process and its descendants at one moment. Each is held by a descriptor, because its ID
    /// may belong to another process when a signal is sent.
    pub struct ProcessTree {
        root: Pid,
        members: Vec<(Pid, OwnedFd)>,
    }

    impl ProcessTree {
        /// Returns the tree of a child whose exit status isn't taken yet, so its ID is its own.
        pub fn of(root: Pid) -> ProcessTree {
            let descriptor = process::pidfd_open(root, PidfdFlags::empty());
            let members = descriptor.into_iter().map(|it| (root, it)).collect();
            let mut tree = ProcessTree { root, members };
            tree.grow();
            tree
        }

        pub fn send(&self, signal: Signal) {
            if !self.has(self.root) {
                // There are no descriptors, for instance on Linux before 5.3.
                let _ = process::kill_process(self.root, signal);
            }
            for (_, descriptor) in &self.members {
                // The process may have ended.
                let _ = process::pidfd_send_signal(descriptor, signal);
            }
        }

        /// Kills the processes, and those that they have started meanwhile.
        pub fn kill(mut self) {
            let end = Instant::now() + STOPPED_WITHIN;
            // A stopped process starts no other process, and stays the parent of those it has.
            self.send(Signal::STOP);
            while self.grow() && Instant::now() < end {
                self.send(Signal::STOP);
            }
            self.send(Signal::KILL);
        }

        /// Waits until all processes have ended, or until `end`.
        pub fn wait_until(&self, end: Instant) {
            for (_, descriptor) in &self.members {
                let left = end.saturating_duration_since(Instant::now());
                // The descriptor is readable once the process has ended. A signal only shortens the
                // wait.
                let left = Timespec::try_from(left).ok();
                let _ = poll(&mut [PollFd::new(descriptor, PollFlags::IN)], left.as_ref());
            }
        }

        /// Adds the descendants that were started since. Returns false if there are none.
        fn grow(&mut self) -> bool {
            let before = self.members.len();
            let mut processes = processes();
            while let Some(index) = processes.iter().position(|(parent, _)| self.has(*parent)) {
                let (_, id) = processes.swap_remove(index);
                let descriptor = process::pidfd_open(id, PidfdFlags::empty());
                if let (false, Ok(descriptor)) = (self.has(id), descriptor) {
                    self.members.push((id, descriptor));
                }
            }
            self.members.len() > before
        }

        fn has(&self, id: Pid) -> bool {
            self.members.iter().any(|(member, _)| *member == id)
        }
    }

    /// Returns all processes, each after its parent's ID.
    fn processes() -> Vec<(Pid, Pid)> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let process = |entry: fs::DirEntry| {
            let id = entry.file_name().to_str()?.parse().ok()?;
            let status = fs::read(entry.path().join("status")).ok()?;
            let status = String::from_utf8_lossy(&status);
            let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
            Some((
                Pid::from_raw(parent.trim().parse().ok()?)?,
                Pid::from_raw(id)?,
            ))
        };
        entries.filter_map(process).collect()
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use std::time::Instant;

    use rustix::process::{self, Pid, Signal};

    /// The process alone, because other systems don't list descendants in the same way.
    pub struct ProcessTree(Pid);

    impl ProcessTree {
        pub fn of(root: Pid) -> ProcessTree {
            ProcessTree(root)
        }

        pub fn send(&self, signal: Signal) {
            // The process may have ended.
            let _ = process::kill_process(self.0, signal);
        }

        pub fn kill(self) {
            self.send(Signal::KILL);
        }

        pub fn wait_until(&self, _end: Instant) {}
    }
}
