// SPDX-License-Identifier: Apache-2.0
#include "compare/tensor_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "shardproof/error.h"

namespace shardproof::compare {
namespace {

std::string systemError() { return std::generic_category().message(errno); }

}  // namespace

std::optional<std::size_t> elementsOf(const std::vector<std::int64_t>& shape, std::size_t most) {
  std::size_t product = 1;
  for (const std::int64_t size : shape) {
    const auto n = static_cast<std::size_t>(size);
    if (n != 0 && product > most / n) return std::nullopt;
    product *= n;
  }
  return product;
}

MappedFile::MappedFile(const std::string& path, const std::string& expected) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw InputError(path, "", "cannot be opened: " + systemError());
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor);
    throw InputError(path, "", "is no regular file, expected a " + expected + " file");
  }
  size_ = static_cast<std::size_t>(status.st_size);
  void* mapped =
      size_ == 0 ? nullptr : ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
  const std::string why = mapped == MAP_FAILED ? systemError() : "";
  ::close(descriptor);
  if (mapped == MAP_FAILED) throw InputError(path, "", "cannot be mapped: " + why);
  bytes_ = static_cast<const std::byte*>(mapped);
}

MappedFile::~MappedFile() {
  if (size_ != 0) ::munmap(const_cast<std::byte*>(bytes_), size_);
}

}  // namespace shardproof::compare
