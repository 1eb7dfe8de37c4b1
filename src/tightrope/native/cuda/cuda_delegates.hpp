// Calls of the allocator's interface that go on to the caching allocator as they are; inside the class `Hook`.
  void copy_data(void* d, const void* s, std::size_t n) const override { base->copy_data(d, s, n); }
  bool initialized() override { return base->initialized(); }
  void emptyCache(c10::MempoolId_t i = {0, 0}) override { base->emptyCache(i); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex d) override { return base->getDeviceStats(d); }
  void resetAccumulatedStats(DeviceIndex d) override { base->resetAccumulatedStats(d); }
  void resetPeakStats(DeviceIndex d) override { base->resetPeakStats(d); }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex d) override { return base->getMemoryInfo(d); }
  void* raw_alloc_with_stream(size_t n, cudaStream_t s) override { return base->raw_alloc_with_stream(n, s); }
  void init(int n) override { base->init(n); }
  double getMemoryFraction(DeviceIndex d) override { return base->getMemoryFraction(d); }
  void setMemoryFraction(double f, DeviceIndex d) override { base->setMemoryFraction(f, d); }
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex d) override { return base->getExpandableSegmentSizes(d); }
  void enable(bool v) override { base->enable(v); }
  bool isEnabled() const override { return base->isEnabled(); }
  void cacheInfo(DeviceIndex d, size_t* l) override { base->cacheInfo(d, l); }
  void* getBaseAllocation(void* p, size_t* s) override { return base->getBaseAllocation(p, s); }
  SnapshotInfo snapshot(c10::MempoolId_t i = {0, 0}
#if TORCH_VERSION_MINOR >= 11
    , bool t = true
#endif
  ) override { return base->snapshot(i
#if TORCH_VERSION_MINOR >= 11
    , t
#endif
    ); }
  void beginAllocateToPool(DeviceIndex d, c10::MempoolId_t i, std::function<bool(cudaStream_t)> f) override { base->beginAllocateToPool(d, i, std::move(f)); }
  void endAllocateToPool(DeviceIndex d, c10::MempoolId_t i) override { base->endAllocateToPool(d, i); }
  void releasePool(DeviceIndex d, c10::MempoolId_t i) override { base->releasePool(d, i); }
  int getPoolUseCount(DeviceIndex d, c10::MempoolId_t i) override { return base->getPoolUseCount(d, i); }
  void createOrIncrefPool(DeviceIndex d, c10::MempoolId_t i, std::shared_ptr<CUDAAllocator> a = nullptr) override { base->createOrIncrefPool(d, i, a); }
  void setUseOnOOM(DeviceIndex d, c10::MempoolId_t i, bool u) override { base->setUseOnOOM(d, i, u); }
  void setNoSplit(DeviceIndex d, c10::MempoolId_t i) override { base->setNoSplit(d, i); }
  bool checkPoolLiveAllocations(DeviceIndex d, c10::MempoolId_t i, const std::unordered_set<void*>& e) override { return base->checkPoolLiveAllocations(d, i, e); }
  ShareableHandle shareIpcHandle(void* p) override { return base->shareIpcHandle(p); }
  std::shared_ptr<void> getIpcDevPtr(std::string h) override { return base->getIpcDevPtr(h); }
  bool isHistoryEnabled() override { return base->isHistoryEnabled(); }
  void recordHistory(bool e, CreateContextFn c, size_t n, RecordContext w, bool cl, const std::vector<std::string>& sk) override { base->recordHistory(e, c, n, w, cl, sk); }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& m) override { base->recordAnnotation(m); }
  void pushCompileContext(std::string& m) override { base->pushCompileContext(m); }
  void popCompileContext() override { base->popCompileContext(); }
  void setUserMetadata(const std::string& m) override { base->setUserMetadata(m); }
  std::string getUserMetadata() override { return base->getUserMetadata(); }
  void attachOutOfMemoryObserver(OutOfMemoryObserver o) override { base->attachOutOfMemoryObserver(o); }
#if TORCH_VERSION_MINOR >= 12
  void attachOomRejectionObserver(OomRejectionObserver o) override { base->attachOomRejectionObserver(o); }
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* p) override { return base->getContextForPointer(p); }
#endif
#if TORCH_VERSION_MINOR >= 13
  void markCaptureBegin(DeviceIndex d) override { base->markCaptureBegin(d); }
  void markCaptureEnd(DeviceIndex d) override { base->markCaptureEnd(d); }
  c10::DataPtr allocateWithAddress(size_t s, void* a) override { return base->allocateWithAddress(s, a); }
#endif
#if TORCH_VERSION_MINOR >= 14
  bool supportsUserMetadata() override { return base->supportsUserMetadata(); }
  void annotateMemory(const void* p, const std::string& m) override { base->annotateMemory(p, m); }
#endif
  void attachAllocatorTraceTracker(AllocatorTraceTracker t) override { base->attachAllocatorTraceTracker(t); }
  void enablePeerAccess(DeviceIndex a, DeviceIndex c) override { base->enablePeerAccess(a, c); }
  cudaError_t memcpyAsync(void* d, int dd, const void* s, int sd, size_t n, cudaStream_t st, bool p2p) override { return base->memcpyAsync(d, dd, s, sd, n, st, p2p); }
  std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex d, c10::MempoolId_t i) override { return base->getCheckpointState(d, i); }
  CheckpointDelta setCheckpointPoolState(DeviceIndex d, std::shared_ptr<AllocatorState> p) override { return base->setCheckpointPoolState(d, p); }
  std::string name() override { return base->name(); }
