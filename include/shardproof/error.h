// Errors of shardproof. The library throws these and never prints or exits; only src/main turns
// them into messages and exit codes.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace shardproof {

// The input cannot be read as a verification problem (exit code 2). `what()` is one line:
// FILE: POINTER: what was found, what was expected. Control characters are shown by their codes,
// and what is very long is shortened.
class InputError : public std::runtime_error {
 public:
  InputError(std::string file, std::string pointer, const std::string& message);
  const std::string& file() const noexcept { return file_; }
  const std::string& pointer() const noexcept { return pointer_; }

 private:
  std::string file_;
  std::string pointer_;
};

// An operator's operands do not fit it. The caller knows the place and turns it into an InputError
// (model) or a defect (plan).
class ShapeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Something is well formed but cannot be handled faithfully: the stage becomes "undecided" with
// this reason, never a pass.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace shardproof
