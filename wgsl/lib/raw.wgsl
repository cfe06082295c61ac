// One repack job, and reads of the raw shard at byte offsets that are multiples of two.
struct Job { source: u32, first_block: u32, num_blocks: u32, stride: u32 }

fn raw_u16(at: u32) -> u32 { return (raw[at >> 2u] >> (8u * (at & 2u))) & 0xffffu; }

fn raw_u32(at: u32) -> u32 {
  if ((at & 2u) == 0u) { return raw[at >> 2u]; }
  return (raw[at >> 2u] >> 16u) | (raw[(at >> 2u) + 1u] << 16u);
}
