// Decode attention, split over the context (flash-decoding): a workgroup takes one KV head and
// one span of the context for all query heads that share it, TILE tokens at a time. It rotates
// the queries itself; the workgroup whose span holds the new token also stores its K and V.
override SCALE: f32;

const QUADS = HEAD_DIM / 4u;
const PAIRS = HEAD_DIM / 2u;
const LANES = WORKGROUP / PAIRS;  // lanes that share the values of one pair of elements

var<workgroup> query: array<vec4<f32>, GROUP * QUADS>;
var<workgroup> weights: array<f32, GROUP * TILE>;
var<workgroup> top: array<f32, GROUP>;
var<workgroup> fade: array<f32, GROUP>;
var<workgroup> total: array<f32, GROUP>;
var<workgroup> partial: array<vec2<f32>, GROUP * WORKGROUP>;

fn load4(head: u32, j: u32) -> vec4<f32> {
  let src = head * HEAD_DIM;
  let low = rope_low(j);
  let high = rope_high(j);
  return vec4<f32>(qkv[src + low], qkv[src + low + 1u], qkv[src + high], qkv[src + high + 1u]);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let kv_head = group.x;
  let position = step.position;
  let length = position + 1u;
  let span = span_size(length);
  let start = group.y * span;
  if (start >= length) { return; }
  let end = min(start + span, length);

  for (var i = lane; i < GROUP * QUADS; i += WORKGROUP) {
    let j = i % QUADS;
    let r = rotate4(load4(kv_head * GROUP + i / QUADS, j), position, j) * SCALE;
    let to = (i / QUADS) * HEAD_DIM;
    query[(to + rope_low(j)) / 4u][rope_low(j) % 4u] = r.x;
    query[(to + rope_low(j)) / 4u][rope_low(j) % 4u + 1u] = r.y;
    query[(to + rope_high(j)) / 4u][rope_high(j) % 4u] = r.z;
    query[(to + rope_high(j)) / 4u][rope_high(j) % 4u + 1u] = r.w;
  }
  if (end == length && lane < QUADS) {
    let to = paged(position, kv_head, 2u);
    let low = rope_low(lane) / 2u;
    let high = rope_high(lane) / 2u;
    let k = rotate4(load4(KV_HEADS * GROUP + kv_head, lane), position, lane);
    let v = load4(KV_HEADS * (GROUP + 1u) + kv_head, lane);
    k_pool[to + low] = pack2x16float(k.xy);
    k_pool[to + high] = pack2x16float(k.zw);
    v_pool[to + low] = pack2x16float(v.xy);
    v_pool[to + high] = pack2x16float(v.zw);
  }
  if (lane < GROUP) {
    top[lane] = -3.0e38;
    total[lane] = 0.0;
  }
  storageBarrier();
  workgroupBarrier();

  var acc: array<vec2<f32>, GROUP>;
  for (var tile = start; tile < end; tile += TILE) {
    for (var i = lane; i < TILE; i += WORKGROUP) {
      // Zeroed by hand: SwiftShader does not renew a bare `var` in each round of a loop.
      var score = array<f32, GROUP>();
      if (tile + i < end) {
        let at = paged(tile + i, kv_head, 2u);
        for (var d = 0u; d < QUADS; d++) {
          let k = vec4<f32>(unpack2x16float(k_pool[at + 2u * d]),
                            unpack2x16float(k_pool[at + 2u * d + 1u]));
          for (var g = 0u; g < GROUP; g++) { score[g] += dot(query[g * QUADS + d], k); }
        }
      }
      for (var g = 0u; g < GROUP; g++) {
        weights[g * TILE + i] = select(-3.0e38, score[g], tile + i < end);
      }
    }
    workgroupBarrier();
    if (lane < GROUP) {
      var new_top = top[lane];
      for (var i = 0u; i < TILE; i++) { new_top = max(new_top, weights[lane * TILE + i]); }
      fade[lane] = exp(top[lane] - new_top);
      top[lane] = new_top;
    }
    workgroupBarrier();
    for (var i = lane; i < GROUP * TILE; i += WORKGROUP) {
      weights[i] = exp(weights[i] - top[i / TILE]);
    }
    workgroupBarrier();
    if (lane < GROUP) {
      var sum = 0.0;
      for (var i = 0u; i < TILE; i++) { sum += weights[lane * TILE + i]; }
      total[lane] = total[lane] * fade[lane] + sum;
    }
    for (var g = 0u; g < GROUP; g++) { acc[g] *= fade[g]; }
    for (var i = lane / PAIRS; i < min(TILE, end - tile); i += LANES) {
      let v = unpack2x16float(v_pool[paged(tile + i, kv_head, 2u) + lane % PAIRS]);
      for (var g = 0u; g < GROUP; g++) { acc[g] += weights[g * TILE + i] * v; }
    }
    workgroupBarrier();
  }

  for (var g = 0u; g < GROUP; g++) { partial[g * WORKGROUP + lane] = acc[g]; }
  workgroupBarrier();
  for (var i = lane; i < GROUP * PAIRS; i += WORKGROUP) {
    let g = i / PAIRS;
    var sum = vec2<f32>(0.0);
    for (var s = 0u; s < LANES; s++) { sum += partial[g * WORKGROUP + s * PAIRS + i % PAIRS]; }
    let head = kv_head * GROUP + g;
    parts[(head * SPLITS + group.y) * PAIRS + i % PAIRS] = sum;
    if (i % PAIRS == 0u) { stats[head * SPLITS + group.y] = vec2<f32>(top[g], total[g]); }
  }
}
