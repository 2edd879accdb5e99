// SPDX-License-Identifier: Apache-2.0
// One file of tensors, mapped into memory (https://huggingface.co/docs/safetensors, "Format"):
// 8 bytes length of the header, the header as JSON, the elements. Nothing is copied.
#pragma once

#include <string>

#include "compare/tensor_file.h"

namespace shardproof::compare {

class SafetensorsFile : public TensorFile {
 public:
  // Maps the file and checks its header. Throws InputError, with the place in the header.
  explicit SafetensorsFile(const std::string& path);

 private:
  void readHeader();

  MappedFile file_;
};

}  // namespace shardproof::compare
