// SPDX-License-Identifier: Apache-2.0
// Writing a result file so that a reader finds the old one or the whole new one, never a part.
#pragma once

#include <span>
#include <string>

namespace shardproof {

// Writes a new file in the same directory and renames it. Throws std::runtime_error with the path
// and what the system said, and leaves no other file behind; also if a signal ends the process
// meanwhile, where the file system can have files without a name (ext4, xfs, btrfs, tmpfs), but for
// SIGKILL between the two system calls that replace an old file, which leaves the whole new one
// beside it. A symbolic link is followed; what is not a regular file (a pipe, /dev/stdout) is
// written directly, as renaming would replace the device.
void writeFileAtomically(const std::string& path, const std::string& text);

struct FileText {
  const std::string& path;
  const std::string& text;
};
// Several that belong together: all are written in full before the first takes its place.
void writeFilesAtomically(std::span<const FileText> files);

// Throws as writeFileAtomically would where the path can be known to be hopeless before the work
// whose result it shall hold.
void checkWritable(const std::string& path);

}  // namespace shardproof
