const SLOTS = 16384;

/**
 * Returns the slot of a key in a cluster: the CRC16 (XMODEM) of its hash tag or, without one, of
 * the whole key. The package cluster-key-slot 1.1.2, by which both clients route, takes a later tag
 * where the first one is empty.
 */
export function slotOf(key: string): number {
  const tag = /^[^{]*\{([^}]+)\}/.exec(key)?.[1] ?? key;
  let crc = 0;
  for (const byte of Buffer.from(tag)) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; bit++) crc = (crc << 1) ^ (crc & 0x8000 ? 0x1021 : 0);
    crc &= 0xffff;
  }
  return crc % SLOTS;
}

/** Returns true for a channel of the library whose hash tag puts it in a slot. */
export const isShardChannel = (channel: string) => channel.endsWith('}');
