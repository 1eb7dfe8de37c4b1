"""A witness that does not trust the library: what a training step takes, counted from outside.

Every case is a family of models, a budget and five training steps in a process of its own. A counter that is
loaded before anything else (``counter.cpp``) sees every request for memory: malloc and its kin, operator
new, mappings and their resident pages. It shares no code with the library and knows nothing of it.

True bytes are the peak, over building the model, compiling it, capture, planning and all steps, of

    tensors   every block that torch's allocator takes: parameters, gradients, optimizer state, batches,
              activations, temporaries
    kernels   blocks of at least 4,096 bytes that torch's libraries take for themselves
    arenas    resident pages of anonymous mappings; pages that were never touched do not count

less what the process held before the model was made, and less the library books of the kernels: what is
still held when every tensor is gone, which is code that oneDNN compiles, one piece per shape, and what the
matrix library keeps for the next product, up to what one product of doubles makes it keep. The column
``kept`` shows them. The interpreter, its objects and what Dynamo and the planner remember are not counted.

A budget is accepted when five steps run. The bar: no accepted run takes more than the budget and 256 KiB.
"""
