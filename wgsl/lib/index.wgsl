// The place of an element in operands with strides of their own; axes of up to six, N0 outermost.
override N1: u32;
override N2: u32;
override N3: u32;
override N4: u32;
override N5: u32;

struct Index { outer: vec3<i32>, inner: vec3<i32> }

fn index_of(element: u32) -> Index {
  var rest = element;
  let i5 = rest % N5;
  rest /= N5;
  let i4 = rest % N4;
  rest /= N4;
  let i3 = rest % N3;
  rest /= N3;
  let i2 = rest % N2;
  rest /= N2;
  return Index(vec3<i32>(vec3<u32>(rest / N1, rest % N1, i2)), vec3<i32>(vec3<u32>(i3, i4, i5)));
}

fn place(at: Index, outer: vec3<i32>, inner: vec3<i32>, offset: i32) -> u32 {
  return u32(dot(at.outer, outer) + dot(at.inner, inner) + offset);
}
