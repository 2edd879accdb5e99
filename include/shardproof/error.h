// SPDX-License-Identifier: Apache-2.0
// Errors of shardproof. The library throws these and never prints or exits; only src/commands turns
// them into messages and exit codes.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace shardproof {

// The input cannot be read as a verification problem (exit code 2). `what()` is one line:
// FILE: POINTER: what was found, what was expected; FILE: ... where it is about the whole file.
// Control characters are shown by their codes, and what is very long is shortened.
class InputError : public std::runtime_error {
 public:
  InputError(std::string file, std::string pointer, const std::string& message);
  const std::string& file() const noexcept { return file_; }
  const std::string& pointer() const noexcept { return pointer_; }
  // POINTER: what was found ..., without the file's name; one line.
  const std::string& inFile() const noexcept { return inFile_; }

 private:
  std::string file_;
  std::string pointer_;
  std::string inFile_;
};

// Several at once, in the order in which they were found; as an InputError it is the first.
class InputErrors : public InputError {
 public:
  static constexpr std::size_t kMost = 20;  // more are not looked for

  // `errors`: at least one. `more`: there are others, which are not told.
  InputErrors(std::vector<InputError> errors, bool more)
      : InputError(errors.front()), errors_(std::move(errors)), more_(more) {}
  const std::vector<InputError>& all() const noexcept { return errors_; }
  bool more() const noexcept { return more_; }

 private:
  std::vector<InputError> errors_;
  bool more_;
};

// Those of `error`, or itself.
std::vector<InputError> allOf(const InputError& error);

// An operator's operands do not fit it. The caller knows the place and turns it into an InputError
// (model) or a defect (plan).
class ShapeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An attribute names a dimension that the operand does not have, or one twice: no program can run
// that, whatever the sizes are. An InputError of a plan, too.
class DimensionError : public ShapeError {
 public:
  using ShapeError::ShapeError;
};

// Something is well formed but cannot be handled faithfully: the stage becomes "undecided" with
// this reason, never a pass.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace shardproof
