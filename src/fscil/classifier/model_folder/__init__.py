"""A model on disk: one folder with weights, a gallery snapshot and a journal of what was enrolled since.

model.json                    what the model is; names, sizes and checksums of the files that make it up
weights-<sha8>.safetensors    the network
decision-<sha8>.safetensors   the decision rule, unless it is the cosine rule (schema 2)
gallery-<n>.safetensors       the snapshot of generation n
journal-<n>.jsonl             one line per record since: its checksum, a space, the record as JSON
.lock, .server                locks of whoever writes, and of a server
.server.json                  process and start of the server, while there is one

A new generation of files becomes current when model.json is replaced; files that it does not name are leftovers. A
record is on disk when `append` returns.
"""

from fscil.classifier.model_folder.folder import Changed, Contents, ModelFolder, other_network
from fscil.classifier.model_folder.manifest import Version, network_of

__all__ = ["Changed", "Contents", "ModelFolder", "Version", "network_of", "other_network"]
