//! The payload of DUMP and RESTORE for a lock, taken apart and made by hand.
//!
//! ```text
//! type byte 7 | 0x81 and the type's name and version, u64 big-endian
//! opcode 5 | length | body | opcode 0 | RDB version u16 | CRC-64 of all before
//! ```

use crc::{Crc, CRC_32_ISO_HDLC, CRC_64_REDIS};

use crate::{unix_time_ms, Expect, Server};

const BODY_SUM: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);
const PAYLOAD_SUM: Crc<u64> = Crc::<u64>::new(&CRC_64_REDIS);

/// The number of bytes of the frame before the body's opcode.
const HEAD_LEN: usize = 10;

/// The number of bytes of the RDB version and the checksum.
const FOOTER_LEN: usize = 10;

const STRING_FOLLOWS: u8 = 5;
const END: u8 = 0;

/// One holder in the body of a stored lock.
#[derive(Debug, Clone)]
pub struct StoredHolder {
    /// The holder's token.
    pub token: Vec<u8>,
    /// The fence of the grant.
    pub fence: u64,
    /// The number of holds.
    pub holds: u64,
    /// The most holders; 0 is no limit.
    pub limit: u32,
    /// The end of the lease, in ms since 1970.
    pub deadline_ms: u64,
    /// The time of the grant, in ms since 1970.
    pub since_ms: u64,
    /// The length of the lease, in ms.
    pub lease_ms: u64,
    /// The permits taken: the number of holders that it counts as.
    pub permits: u32,
    /// The data, which only version 2 stores.
    pub data: Vec<u8>,
}

impl StoredHolder {
    /// Returns a holder with one hold for ten minutes from now on.
    pub fn new(token: &[u8]) -> StoredHolder {
        let now_ms = u64::try_from(unix_time_ms()).expect("a clock after 1970");
        StoredHolder {
            token: token.to_vec(),
            fence: now_ms * 1_000,
            holds: 1,
            limit: 0,
            deadline_ms: now_ms + 600_000,
            since_ms: now_ms,
            lease_ms: 600_000,
            permits: 1,
            data: Vec::new(),
        }
    }
}

/// Returns the body of a lock with its checksum, in version 1. Mode 0 is exclusive, 1 shared.
pub fn body(mode: u8, holders: &[StoredHolder]) -> Vec<u8> {
    body_of(vec![mode], holders, |_| Vec::new())
}

/// Returns the body of a lock with its checksum, in version 2: with the data of each holder.
pub fn body_with_data(mode: u8, holders: &[StoredHolder]) -> Vec<u8> {
    body_of(vec![2, mode], holders, |holder| {
        let len = u16::try_from(holder.data.len()).expect("data of a testable length");
        [&len.to_le_bytes(), holder.data.as_slice()].concat()
    })
}

fn body_of(
    mut body: Vec<u8>,
    holders: &[StoredHolder],
    end: impl Fn(&StoredHolder) -> Vec<u8>,
) -> Vec<u8> {
    let count = u32::try_from(holders.len()).expect("a few holders");
    body.extend(count.to_le_bytes());
    for holder in holders {
        let len = u16::try_from(holder.token.len()).expect("a token of a testable length");
        body.extend(len.to_le_bytes());
        body.extend(&holder.token);
        body.extend(holder.fence.to_le_bytes());
        body.extend(holder.holds.to_le_bytes());
        body.extend(holder.limit.to_le_bytes());
        body.extend(holder.deadline_ms.to_le_bytes());
        body.extend(holder.since_ms.to_le_bytes());
        body.extend(holder.lease_ms.to_le_bytes());
        body.extend(holder.permits.to_le_bytes());
        body.extend(end(holder));
    }
    sealed(body)
}

/// Returns the bytes, followed by the checksum of a body.
pub fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = BODY_SUM.checksum(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

/// The frame in which one server puts the body of a lock.
pub struct Frame {
    head: Vec<u8>,
    rdb_version: Vec<u8>,
}

impl Frame {
    /// Returns the frame that a server gives to its locks. Switches the server's compression off.
    #[track_caller]
    pub fn from(server: &Server) -> Frame {
        server.call("CONFIG SET rdbcompression no").okay();
        server.call("LOCK.ACQUIRE frame a").grant();
        let (frame, _) = Frame::of(&server.call("DUMP frame").bytes());
        server.call("DEL frame").int();
        frame
    }

    /// Takes a DUMP apart. Its server must not compress.
    #[track_caller]
    fn of(dump: &[u8]) -> (Frame, Vec<u8>) {
        let (head, rest) = dump.split_at(HEAD_LEN);
        let (inner, footer) = rest.split_at(rest.len() - FOOTER_LEN);
        let [STRING_FOLLOWS, length, body @ .., END] = inner else {
            panic!("not one string between the opcodes: {inner:?}");
        };
        assert_eq!(
            usize::from(*length),
            body.len(),
            "a body of less than 64 bytes, not compressed"
        );
        let frame = Frame {
            head: head.to_vec(),
            rdb_version: footer[..2].to_vec(),
        };
        assert_eq!(frame.payload(body), dump, "the frame is understood");
        (frame, body.to_vec())
    }

    /// Returns the same frame for another encoding version of the type.
    pub fn with_encoding_version(&self, version: u16) -> Frame {
        let mut head = self.head.clone();
        // The version is in the lower ten bits, and the name is in the bits above.
        let last = u16::from_be_bytes([head[HEAD_LEN - 2], head[HEAD_LEN - 1]]);
        let last = (last & !0x3ff) | (version & 0x3ff);
        head.splice(HEAD_LEN - 2.., last.to_be_bytes());
        Frame {
            head,
            rdb_version: self.rdb_version.clone(),
        }
    }

    /// Returns the payload that RESTORE takes.
    pub fn payload(&self, body: &[u8]) -> Vec<u8> {
        let mut payload = self.head.clone();
        payload.push(STRING_FOLLOWS);
        payload.extend(length(body.len()));
        payload.extend(body);
        payload.push(END);
        payload.extend(&self.rdb_version);
        let sum = PAYLOAD_SUM.checksum(&payload);
        payload.extend(sum.to_le_bytes());
        payload
    }
}

/// Makes a lock with this fence by RESTORE. The fence raises the server's counter.
#[track_caller]
pub fn restore_with_fence(server: &Server, key: &str, fence: i64) {
    let holder = StoredHolder {
        fence: u64::try_from(fence).expect("a fence"),
        ..StoredHolder::new(b"ahead")
    };
    let payload = Frame::from(server).payload(&body(0, &[holder]));
    server
        .call(&[b"RESTORE".as_slice(), key.as_bytes(), b"0", &payload])
        .okay();
}

/// Returns a length in the RDB's encoding: 6, 14 or 32 bits.
fn length(len: usize) -> Vec<u8> {
    let len = u32::try_from(len).expect("a length of 32 bits");
    if len < 1 << 6 {
        return vec![len as u8];
    }
    if len < 1 << 14 {
        return (0x4000 | len as u16).to_be_bytes().to_vec();
    }
    let mut bytes = vec![0x80];
    bytes.extend(len.to_be_bytes());
    bytes
}
