// Dialogs.
export const dialogs = new Map();
