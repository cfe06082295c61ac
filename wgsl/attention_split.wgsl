// Decode attention, split over the context (flash-decoding): a workgroup takes one span of the
// context for HEADS of the query heads that share a KV head, TILE tokens at a time, SHARE lanes each.
// It rotates queries and the new key itself, and the last workgroup of a KV head stores the new K
// and V; nobody reads them from the pool in this dispatch, as workgroups run in any order.
override SCALE: f32;

const QUADS = HEAD_DIM / 4u;
const PAIRS = HEAD_DIM / 2u;
const OCTETS = HEAD_DIM / 8u;
const LANES = WORKGROUP / PAIRS;  // lanes that share the values of a pair of elements
const AHEAD = 16u;  // values a lane asks for before it knows their weights: loads take long
const SHARE = WORKGROUP / TILE;
const LOWEST = -3.0e38;

var<workgroup> blocks: array<u32, TILE / KV_BLOCK>;
var<workgroup> query: array<vec4<f32>, HEADS * QUADS>;
var<workgroup> weights: array<f32, HEADS * TILE>;
var<workgroup> values: array<vec2<f32>, WORKGROUP>;

fn load4(head: u32, j: u32) -> vec4<f32> {
  let src = head * HEAD_DIM;
  let low = rope_low(j);
  let high = rope_high(j);
  return vec4<f32>(qkv[src + low], qkv[src + low + 1u], qkv[src + high], qkv[src + high + 1u]);
}

// The row of the pools that token i of the tile has.
fn place(i: u32, head: u32) -> Row {
  return row_of((blocks[i / KV_BLOCK] * KV_HEADS + head) * KV_BLOCK + i % KV_BLOCK);
}

// The block of every KV_BLOCK tokens of a tile, a lane each.
fn block_of(tile: u32, lane: u32, position: u32) -> u32 {
  return block_table[min(tile / KV_BLOCK + lane, position / KV_BLOCK)];
}

// Values of every LANES-th of the `count` tokens of a tile, from i on.
fn values_from(i: u32, tile: u32, count: u32, kv_head: u32, pair: u32) -> array<u32, AHEAD> {
  var v: array<u32, AHEAD>;
  for (var a = 0u; a < AHEAD; a++) {
    let t = min(i + a * LANES, count - 1u);
    v[a] = value_bits(place(t, kv_head), pair);
    if (tile + t == step.position) { v[a] = new_v[pair]; }
  }
  return v;
}

fn put_query(head: u32, at: u32, pair: vec2<f32>) {
  let i = (head * HEAD_DIM + at) / 4u;
  query[i][at % 4u] = pair.x;
  query[i][at % 4u + 1u] = pair.y;
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let kv_head = group.x;
  let first_head = kv_head * GROUP + group.z * HEADS;
  let position = step.position;
  let length = position + 1u;
  let span = span_size();
  let first = seen_from(length);
  let start = span_origin() + group.y * span;
  if (start >= length) { return; }
  let end = min(start + span, length);
  // Loads take long, but overlap: what is needed later is asked for first, and other lanes than
  // those of the queries bring the new key and value.
  var block = block_of(start, lane, position);
  let new_row = row_of(paged(position, kv_head));
  let from_end = WORKGROUP - 1u - lane;

  for (var i = lane; i < HEADS * QUADS; i += WORKGROUP) {
    let j = i % QUADS;
    let r = rotate4(load4(first_head + i / QUADS, j), position, j) * SCALE;
    put_query(i / QUADS, rope_low(j), r.xy);
    put_query(i / QUADS, rope_high(j), r.zw);
  }
  if (end == length) {
    if (from_end < QUADS) {
      let k = rotate4(load4(KV_HEADS * GROUP + kv_head, from_end), position, from_end);
      let v = load4(KV_HEADS * (GROUP + 1u) + kv_head, from_end);
      put_new(rope_low(from_end) / 2u, k.xy, v.xy);
      put_new(rope_high(from_end) / 2u, k.zw, v.zw);
    }
    workgroupBarrier();
    finish_new(lane, new_row, group.z == GROUP / HEADS - 1u);
  }
  workgroupBarrier();

  let pair = lane % PAIRS;
  let token = lane / SHARE;
  var acc: array<vec2<f32>, HEADS>;
  var top: array<f32, HEADS>;
  var total: array<f32, HEADS>;
  for (var g = 0u; g < HEADS; g++) { top[g] = LOWEST; }
  for (var tile = start; tile < end; tile += TILE) {
    // Zeroed by hand: SwiftShader does not renew a bare `var` in each round of a loop.
    var score = array<f32, HEADS>();
    var seen = array<f32, HEADS>();
    let inside = tile + token >= first && tile + token < end;
    if (lane < TILE / KV_BLOCK) { blocks[lane] = block; }
    block = block_of(tile + TILE, lane, position);
    workgroupBarrier();
    let count = min(TILE, end - tile);
    let own = max(tile, first) - tile + lane / PAIRS;
    var ahead = values_from(own, tile, count, kv_head, pair);
    if (inside) {
      let row = place(token, kv_head);
      for (var i = 0u; i < OCTETS / SHARE; i++) {
        let o = i * SHARE + lane % SHARE;
        var bits = key_bits(row, o);
        if (tile + token == position) { bits = new_key_bits(o); }
        let a = low_quad(bits);
        let b = high_quad(bits);
        for (var g = 0u; g < HEADS; g++) {
          let q = g * QUADS + 2u * o;
          score[g] += dot(query[q], a) + dot(query[q + 1u], b);
        }
      }
    }
    for (var g = 0u; g < HEADS; g++) {
      score[g] = share_sum(score[g], lane);
      seen[g] = select(LOWEST, score[g], inside);
    }
    let tile_top = fold_heads(seen, lane, true);
    for (var g = 0u; g < HEADS; g++) {
      let new_top = max(top[g], tile_top[g]);
      let fade = exp(top[g] - new_top);
      let weight = select(0.0, exp(score[g] - new_top), inside);
      top[g] = new_top;
      total[g] = total[g] * fade + weight / f32(SHARE);
      acc[g] *= fade;
      if (lane % SHARE == 0u) { weights[g * TILE + token] = weight; }
    }
    workgroupBarrier();
    for (var i = own; i < count; i += LANES * AHEAD) {
      let v = ahead;
      if (i + LANES * AHEAD < count) {
        ahead = values_from(i + LANES * AHEAD, tile, count, kv_head, pair);
      }
      for (var a = 0u; a < AHEAD; a++) {
        let t = i + a * LANES;
        if (t < count) {
          for (var g = 0u; g < HEADS; g++) {
            acc[g] += weights[g * TILE + t] * pair_of(v[a]);
          }
        }
      }
    }
    workgroupBarrier();
  }

  let sums = fold_heads(total, lane, false);
  for (var g = 0u; g < HEADS; g++) {
    let head = first_head + g;
    values[lane] = acc[g];
    workgroupBarrier();
    if (lane < PAIRS) {
      var sum = vec2<f32>(0.0);
      for (var s = 0u; s < LANES; s++) { sum += values[s * PAIRS + lane]; }
      parts[(head * num_spans() + group.y) * PAIRS + lane] = sum;
    }
    if (lane == 0u) { stats[head * num_spans() + group.y] = vec2<f32>(top[g], sums[g]); }
    workgroupBarrier();
  }
}
