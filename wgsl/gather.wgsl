// y = entries of an axis of x by their numbers, from the end if negative: a thread an element.
override LENGTH: u32;
override INNER: u32;
override INDICES: u32;
override COUNT: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let element = (group.y * groups.x + group.x) * WORKGROUP + lane;
  if (element >= COUNT) { return; }
  let entry = element / INNER;
  var index = indices[entry % INDICES];
  if (index < 0) { index += i32(LENGTH); }
  index = clamp(index, 0, i32(LENGTH) - 1);
  y[element] = x[(entry / INDICES * LENGTH + u32(index)) * INNER + element % INNER];
}
