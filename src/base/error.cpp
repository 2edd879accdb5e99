#include "shardproof/error.h"

#include "util/printable.h"

namespace shardproof {
namespace {

// A name or a number of a hostile file may be megabytes long.
constexpr std::size_t kMostPointer = 300, kMostMessage = 1000;

std::string line(const std::string& file, const std::string& pointer, const std::string& message) {
  return printable(file) + ": " + (pointer.empty() ? "/" : printable(pointer, kMostPointer)) +
         ": " + printable(message, kMostMessage);
}

}  // namespace

InputError::InputError(std::string file, std::string pointer, const std::string& message)
    : std::runtime_error(line(file, pointer, message)),
      file_(std::move(file)),
      pointer_(std::move(pointer)) {}

}  // namespace shardproof
