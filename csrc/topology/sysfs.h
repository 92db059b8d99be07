#pragma once

#include <string>
#include <vector>

namespace hetcomm {

// The first line of an attribute, without its newline; empty if it cannot be read, which is how
// drivers say that a fact is unknown.
std::string read_attribute(const std::string& path);
// The number an attribute starts with (decimal, or hexadecimal after 0x), otherwise `otherwise`.
double read_number(const std::string& path, double otherwise);
bool exists(const std::string& path);
// Names in a directory in natural order (mlx5_2 before mlx5_10); none if there is no directory.
std::vector<std::string> list_directory(const std::string& path);
// Last part of a symbolic link's target, empty if there is no link.
std::string link_name(const std::string& path);
// Whether a comes before b when runs of digits are compared as numbers.
bool natural_less(const std::string& a, const std::string& b);

}  // namespace hetcomm
