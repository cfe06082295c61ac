"""A GPU that has not the memory for one buffer, in a page or in a worker."""

# Refuses buffer number `refusing.at`, or the next one with the label `refusing.next`. A GPU's
# refusal is an invalid buffer and an error of the innermost scope for such errors; without a scope
# nobody but the console hears of it. A buffer that would be mapped is refused by the browser.
REFUSE = """() => {
  const device = GPUDevice.prototype;
  const {createBuffer, pushErrorScope, popErrorScope} = device;
  const scopes = [];
  const refusing = self.refusing = {at: 0, next: null, count: 0, unguarded: [], label: ''};
  device.pushErrorScope = function (filter) {
    scopes.push({filter, failed: false});
    return pushErrorScope.call(this, filter);
  };
  device.popErrorScope = function () {
    const {failed} = scopes.pop();
    const popped = popErrorScope.call(this);
    return failed ? popped.then(() => new GPUOutOfMemoryError('refused')) : popped;
  };
  device.createBuffer = function (descriptor) {
    const {label} = descriptor;
    if (++refusing.count !== refusing.at && label !== refusing.next) {
      return createBuffer.call(this, descriptor);
    }
    Object.assign(refusing, {label, next: null});
    const scope = scopes.findLast(({filter}) => filter === 'out-of-memory');
    if (!scope || !scopes.some(({filter}) => filter === 'validation')) {
      refusing.unguarded.push(label);
    }
    if (descriptor.mappedAtCreation) throw new RangeError('refused');
    if (scope) scope.failed = true;
    pushErrorScope.call(this, 'validation');
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.MAP_WRITE;
    const buffer = createBuffer.call(this, {...descriptor, usage});
    popErrorScope.call(this);
    return buffer;
  };
}"""
