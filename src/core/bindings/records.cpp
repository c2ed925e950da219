#include "records.h"

namespace covey {

Records from_list(nb::list list) {
  Records records;
  records.bytes.reserve(list.size());
  records.views.reserve(list.size());
  for (nb::handle each : list) {
    records.views.emplace_back(each);
    const View& view = records.views.back();
    records.bytes.push_back({view.data(), view.data() + view.size()});
  }
  return records;
}

Records from_buffers(nb::list buffers, nb::handle sources, ArrayArg<std::uint64_t> offsets,
                     ArrayArg<std::uint64_t> lengths, std::size_t header, std::size_t footer) {
  Records records;
  for (nb::handle each : buffers) records.views.emplace_back(each);
  const std::size_t count = offsets.shape(0);
  if (lengths.shape(0) != count) throw nb::value_error("offsets and lengths differ");
  const std::uint32_t* source = nullptr;
  ArrayArg<std::uint32_t> source_array;
  if (!sources.is_none()) {
    source_array = nb::cast<ArrayArg<std::uint32_t>>(sources);
    if (source_array.shape(0) != count) throw nb::value_error("offsets and sources differ");
    source = source_array.data();
  }
  records.bytes.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t which = source == nullptr ? 0 : source[i];
    const std::uint64_t offset = offsets.data()[i], length = lengths.data()[i];
    const std::size_t size = which < records.views.size() ? records.views[which].size() : 0;
    if (which >= records.views.size() || offset < header || offset > size ||
        length > size - offset || footer > size - offset - length) {
      raise_fault({.code = FaultCode::out_of_bounds,
                   .row = i,
                   .offset = offset,
                   .found = length,
                   .expected = size});
    }
    const std::uint8_t* const begin = records.views[which].data() + offset;
    records.bytes[i] = {begin, begin + length};
  }
  return records;
}

}  // namespace covey
