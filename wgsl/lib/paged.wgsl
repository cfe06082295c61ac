// Which row of a pool a token's K or V of one head is: [physical block][kv head][token in block].
fn paged(position: u32, head: u32) -> u32 {
  let block = block_table[position / KV_BLOCK];
  return (block * KV_HEADS + head) * KV_BLOCK + position % KV_BLOCK;
}
