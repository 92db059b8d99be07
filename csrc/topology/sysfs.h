#pragma once

#include <string>
#include <vector>

namespace hetcomm {

// The first line of an attribute, without its newline. Empty if the attribute cannot be read: this
// is how drivers report an unknown fact.
std::string read_attribute(const std::string& path);
// The number at the start of an attribute, decimal or hexadecimal (0x); `otherwise` without one.
double read_number(const std::string& path, double otherwise);
bool exists(const std::string& path);
// The names in a directory in natural order (mlx5_2 before mlx5_10); none without the directory.
std::vector<std::string> list_directory(const std::string& path);
// The last part of a symbolic link's target; empty without a link.
std::string link_name(const std::string& path);
// Whether a comes before b when runs of digits are compared as numbers.
bool natural_less(const std::string& a, const std::string& b);

}  // namespace hetcomm
