// SPDX-License-Identifier: Apache-2.0
#include "generate/schedule.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <tuple>

namespace shardproof::generate {

std::vector<Block> scheduleOf(const Options& options, int rank) {
  const int stages = static_cast<int>(options.pp),
            microbatches = static_cast<int>(options.microbatches);
  const int perRank = static_cast<int>(options.virtualStages);
  const int all = microbatches * perRank;
  // The k-th forward (backward) block of this rank: groups of `stages` microbatches go through the
  // rank's chunks in turn.
  const auto block = [&](int k, bool forward) {
    const int inGroup = k % (stages * perRank);
    const int turn = inGroup / stages;
    const int own = forward ? turn : perRank - 1 - turn;
    if (perRank == 1) return Block{forward, rank, k};
    return Block{forward, own * stages + rank, k / (stages * perRank) * stages + inGroup % stages};
  };
  const int warmup = std::min(
      all, perRank == 1 ? stages - 1 - rank : 2 * (stages - 1 - rank) + (perRank - 1) * stages);
  std::vector<Block> order;
  for (int k = 0; k < warmup; ++k) order.push_back(block(k, true));
  for (int k = warmup; k < all; ++k) {
    order.push_back(block(k, true));
    order.push_back(block(k - warmup, false));
  }
  for (int k = all - warmup; k < all; ++k) order.push_back(block(k, false));
  return order;
}

std::vector<std::vector<Event>> timeline(const Options& options) {
  using Key = std::tuple<bool, int, int>;  // forward, chunk, microbatch
  const int ranks = static_cast<int>(options.pp), last = static_cast<int>(options.chunks()) - 1;
  const auto sourceOf = [&](const Block& b) {
    return Key{b.forward, b.forward ? b.chunk - 1 : b.chunk + 1, b.microbatch};
  };
  const auto receives = [&](const Block& b) { return b.forward ? b.chunk > 0 : b.chunk < last; };
  const auto sends = [&](const Block& b) { return b.forward ? b.chunk < last : b.chunk > 0; };
  std::vector<std::vector<Block>> order;
  for (int rank = 0; rank < ranks; ++rank) order.push_back(scheduleOf(options, rank));
  std::vector<std::vector<std::int64_t>> starts(order.size());
  std::map<Key, std::int64_t> ends;
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < order.size(); ++rank) {
      std::int64_t now = starts[rank].empty()
                             ? 0
                             : ends.at({order[rank][starts[rank].size() - 1].forward,
                                        order[rank][starts[rank].size() - 1].chunk,
                                        order[rank][starts[rank].size() - 1].microbatch});
      while (starts[rank].size() < order[rank].size()) {
        const Block& b = order[rank][starts[rank].size()];
        if (receives(b)) {
          const auto source = ends.find(sourceOf(b));
          if (source == ends.end()) break;
          now = std::max(now, source->second);
        }
        starts[rank].push_back(now);
        now += b.forward ? 1 : 2;
        ends[{b.forward, b.chunk, b.microbatch}] = now;
        moved = true;
      }
    }
  }
  std::vector<std::vector<Event>> events(order.size());
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    if (starts[rank].size() != order[rank].size())
      throw std::logic_error("the pipeline schedule waits for itself");
    // By time, then by message; a message that is ready when a block starts comes before the block.
    std::vector<std::pair<std::tuple<std::int64_t, bool, Key>, Event>> timed;
    for (std::size_t i = 0; i < order[rank].size(); ++i) {
      const Block& b = order[rank][i];
      const Key own{b.forward, b.chunk, b.microbatch};
      if (receives(b))
        timed.push_back({{ends.at(sourceOf(b)), false, sourceOf(b)}, {Action::kReceive, b}});
      timed.push_back({{starts[rank][i], true, own}, {Action::kCompute, b}});
      if (sends(b)) timed.push_back({{ends.at(own), false, own}, {Action::kSend, b}});
    }
    std::sort(timed.begin(), timed.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [time, event] : timed) events[rank].push_back(event);
  }
  return events;
}

}  // namespace shardproof::generate
