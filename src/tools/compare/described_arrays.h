// SPDX-License-Identifier: Apache-2.0
// A trace of another framework: NAME.trace.json describes tensors of NumPy's files (.npy) or of
// safetensors files beside it (docs/numbers.md, "The format of a trace").
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compare/safetensors.h"

namespace shardproof::compare {

class DescribedArrays : public TensorFile {
 public:
  // Throws InputError where the description or a file that it names cannot be read.
  explicit DescribedArrays(const std::string& path);

 private:
  std::vector<std::unique_ptr<MappedFile>> arrays_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
};

// The array of a .npy file (https://numpy.org/neps/nep-0001-npy-format.html). `dtype`: of elements
// for which NumPy has none ("BF16"), or nothing. Throws InputError, with the place in the file.
Stored arrayOf(const MappedFile& file, const std::string& path, const std::string& dtype);

}  // namespace shardproof::compare
