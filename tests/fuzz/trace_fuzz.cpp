// SPDX-License-Identifier: Apache-2.0
// A safetensors file of a trace: it is read, or an InputError names the place. Nothing outside of
// the mapping is touched, also where elements are merged.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "compare/measure.h"
#include "compare/trace.h"
#include "shardproof/error.h"

using namespace shardproof;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::filesystem::path directory = [] {
    const auto path = std::filesystem::temp_directory_path() /
                      ("shardproof_trace_fuzz." + std::to_string(::getpid()));
    std::filesystem::create_directories(path);
    return path;
  }();
  std::ofstream(directory / "rank.safetensors", std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  try {
    const compare::Trace trace = compare::readTrace(directory.string());
    for (const auto& [name, tensor] : trace.tensors) {
      std::vector<const compare::Piece*> pieces;
      for (const compare::Piece& piece : tensor.pieces) pieces.push_back(&piece);
      const compare::Layout layout = compare::layoutOf(trace, pieces, tensor.calls(), {});
      if (layout.elements() < (std::size_t{1} << 20) && layout.summands < 64)
        compare::measure(layout, layout, false);
    }
  } catch (const InputError&) {
  }
  return 0;
}
