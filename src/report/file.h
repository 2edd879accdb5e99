// Writing a result file so that a reader finds the old one or the whole new one, never a part.
#pragma once

#include <string>

namespace shardproof {

// Writes a temporary file in the same directory and renames it. Throws std::runtime_error with the path and what the system said, and leaves no
// temporary file behind. A symbolic link is followed; what is not a regular file (a pipe, /dev/stdout) is written directly, as
// renaming would replace the device.
void writeFileAtomically(const std::string& path, const std::string& text);

// Throws as writeFileAtomically would where the path can be known to be hopeless before the work whose result it shall hold.
void checkWritable(const std::string& path);

}  // namespace shardproof
