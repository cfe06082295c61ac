// Where a token's K or V of one head lies in the pool, in units of `width` values:
// [physical block][kv head][token in block][head_dim].
fn paged(position: u32, head: u32, width: u32) -> u32 {
  let block = block_table[position / KV_BLOCK];
  return ((block * KV_HEADS + head) * KV_BLOCK + position % KV_BLOCK) * (HEAD_DIM / width);
}
