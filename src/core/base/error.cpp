// SPDX-License-Identifier: Apache-2.0
#include "shardproof/error.h"

#include "util/printable.h"

namespace shardproof {
namespace {

// A name or a number of a hostile file may be megabytes long.
constexpr std::size_t kMostPointer = 300, kMostMessage = 1000;

std::string line(const std::string& pointer, const std::string& message) {
  return (pointer.empty() ? "" : printable(pointer, kMostPointer) + ": ") +
         printable(message, kMostMessage);
}

}  // namespace

InputError::InputError(std::string file, std::string pointer, const std::string& message)
    : std::runtime_error(printable(file) + ": " + line(pointer, message)),
      file_(std::move(file)),
      pointer_(std::move(pointer)),
      inFile_(line(pointer_, message)) {}

std::vector<InputError> allOf(const InputError& error) {
  if (const auto* several = dynamic_cast<const InputErrors*>(&error)) return several->all();
  return {error};
}

}  // namespace shardproof
